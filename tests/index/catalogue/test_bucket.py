"""Indexes whose generations lie in a bucket: each with a directory of its own, which is a copy."""

from pathlib import Path

from aeenc import errors
from support.waiting import eventually
from support.worlds.index_world import FACTS, facts, raises


async def test_an_index_with_an_empty_directory_serves_what_another_has_activated(serve, tmp_path: Path):
    url = f"file://{tmp_path / 'bucket'}"
    async with serve(artifacts_url=url, artifacts_dir=tmp_path / "one") as one:
        first = (await one.client.build("science", facts())).id
        async with serve(artifacts_url=url, artifacts_dir=tmp_path / "two") as two:
            retrieved = await two.client.retrieve("science", [FACTS[0]], k=2)
            assert retrieved.generation == first
            assert retrieved.results == (await one.client.retrieve("science", [FACTS[0]], k=2)).results

            second = (await one.client.build("science", facts()[:4])).id

            async def follows() -> bool:
                return (await two.client.retrieve("science", [FACTS[0]], k=2)).generation == second

            await eventually(follows)
            assert [one.id async for one in two.client.list_generations("science")] == [second, first]
            await two.client.activate("science", first, expected=second)
            await raises(errors.Aborted, one.client.activate("science", second, expected=second), first)
            await one.client.delete("science", second)
            await raises(errors.NotFound, two.client.activate("science", second), second)
    async with serve(artifacts_url=url, artifacts_dir=tmp_path / "three") as three:
        assert (await three.client.retrieve("science", [FACTS[0]], k=2)).generation == first


async def test_an_index_that_restarts_while_the_bucket_is_away_serves_its_copies(serve, tmp_path: Path):
    bucket = tmp_path / "bucket"
    async with serve(artifacts_url=f"file://{bucket}", artifacts_dir=tmp_path / "one") as one:
        built = (await one.client.build("science", facts())).id
    bucket.rename(tmp_path / "elsewhere")
    bucket.write_text("neither folder nor store")
    async with serve(artifacts_url=f"file://{bucket}", artifacts_dir=tmp_path / "one") as one:
        assert (await one.client.retrieve("science", [FACTS[0]], k=2)).generation == built
        await raises(errors.Unavailable, one.client.build("science", iter(facts()[:3])), "cannot be reached")
