"""Who calls, and what they may: the two tokens of the settings, and named credentials from a file.

    authorization -> Gate: token or credential -> role, service, quota -> Caller -> corpora of the request -> handler
                      ^ reads again                                         |
    tokens file ------'                            name in logs, metrics and audit; tokens spent

No module here imports grpc; `interceptors.py` converts.
"""
