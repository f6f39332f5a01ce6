"""Nodes that people judge: a durable queue of tasks in Redis, leased, answered, taken back, amended, adjudicated.

`record` holds the values, `deciding` what answers mean, `steps` what may happen to a task (all pure); `task_store`
keeps tasks in Redis; `queue` and `review` are what people call, `gateway` what a run's worker calls.
"""
