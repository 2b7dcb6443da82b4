"""A feature store: polars and NumPy fill it, a service reads it by key, training reads a snapshot.

    python docs/examples/feature_store.py [--users 200000]

Needs polars: in a checkout, pip install '.[polars]'. How long a call takes goes to standard error.
"""

import argparse
import sys
import tempfile
import threading
import time

import numpy as np
import polars as pl
import tidemark as tm

FLOATS, CALLS = 16, 200
VECTOR = f"V{4 * FLOATS}"  # NumPy's name for so many bytes


def vectors(users, seed):
    """Embeddings of length one, a row for each user."""
    made = np.random.default_rng(seed).normal(size=(users, FLOATS)).astype("f4")
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def features(orders):
    """What a job over orders gives: a row for each user."""
    return orders.group_by("user").agg(orders=pl.len().cast(pl.Int32), mean_price=pl.mean("price"))


def main(folder, users):
    columns = [tm.Column("user", tm.Int64), tm.Column("orders", tm.Int32), tm.Column("mean_price", tm.Float64)]
    columns += [tm.Column("embedding", tm.Binary(4 * FLOATS), nullable=True)]
    orders = pl.DataFrame({"user": np.arange(3 * users) % users}).with_columns(price=pl.col("user") * 31 % 10_000 / 100)
    with tm.open(folder, data_memory="512 MiB", redo_log="256 MiB", durability="epoch") as db:
        served = db.create_table("feature.user", columns, primary_key="user")

        # The first batch as a DataFrame, the embeddings of a model as NumPy.
        rows = served.insert_many(features(orders))
        first = vectors(users, seed=1)
        changed = served.update_many({"user": np.arange(users), "embedding": first.view(VECTOR).ravel()})
        print(f"{rows:,} users, {changed:,} embeddings")
        assert rows == changed == len(served) == users

        # Serving: one row for each key, in the order of the keys, and NULL where there is none.
        keys = [*range(100, 116), users + 5]
        found = served.get_many(keys, ["orders", "embedding"], missing="null")
        assert found.num_rows == len(keys) and found["orders"].to_pylist() == [3] * 16 + [None]
        nearest = np.stack([np.frombuffer(each, "f4") for each in found["embedding"].to_pylist() if each]) @ first[107]
        print(f"user 107 among {found.num_rows} keys: the nearest is {keys[int(nearest.argmax())]}")
        begin = time.perf_counter()
        for _ in range(CALLS):
            served.get_many(keys, ["orders", "embedding"], missing="null")
        print(f"{(time.perf_counter() - begin) / CALLS * 1e6:.0f} µs for {len(keys)} keys", file=sys.stderr)

        # Training reads all rows as at one moment, while the next batch comes: old users, which keep their embeddings,
        # and new ones, which have none yet.
        later = pl.DataFrame({"user": np.arange(users // 2, users + users // 10), "price": 7.5})
        with db.snapshot() as snapshot:
            writer = threading.Thread(target=lambda: served.upsert_many(features(later)))
            writer.start()
            now = snapshot["feature.user"]
            everything = now.to_numpy(["user", "embedding"])
            writer.join()
            assert now.scan_polars().select(pl.sum("orders")).collect().item() == 3 * users
        matrix = np.frombuffer(b"".join(everything["embedding"]), "f4").reshape(-1, FLOATS)
        assert np.array_equal(matrix, first[everything["user"]])
        without = served.count(where=tm.col("embedding").is_null())
        print(f"in the snapshot: {len(matrix):,} users; afterwards {len(served):,}, {without:,} without an embedding")
        assert without == users // 10 and served.sum("orders") == 3 * (users // 2) + len(later)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=200_000)
    with tempfile.TemporaryDirectory() as temporary:
        main(f"{temporary}/store", parser.parse_args().users)
