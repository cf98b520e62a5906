"""Small benchmarks that users run on their own pool, over ``gpupool.Client``.

``catalogue`` lists the benchmarks. Each is a module with a function ``cases``: a case runs programs of ``programs/`` as
workloads of the pool and yields figures. ``run`` measures case after case, and ``results`` writes every figure as one
JSON line as soon as it is measured, so that an interrupted run can be resumed.
"""
