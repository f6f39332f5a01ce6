"""A client that knows nothing of this project: grpcio, grpcio-reflection, and what the server says about itself.

python examples/reflection_client.py 127.0.0.1:50052 science "a magnet attracts an iron nail"
"""

from __future__ import annotations

import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToJson
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def main(target: str, corpus: str, text: str) -> None:
    """Lists the services at `target` and asks the index for the premises that explain `text`."""
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        print("services:", ", ".join(sorted(database.get_services())))
        pool = DescriptorPool(database)
        method = pool.FindServiceByName("aeenc.v1.IndexService").FindMethodByName("Retrieve")
        request_class, response_class = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        retrieve = channel.unary_unary(
            "/aeenc.v1.IndexService/Retrieve",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        response = retrieve(request_class(corpus=corpus, texts=[text], k=3, drop_self=True), timeout=30)
        print(MessageToJson(response))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
