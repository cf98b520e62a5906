"""No function that takes memory or GPU time is left unguarded, in any of its forms."""

from __future__ import annotations

import re

from native_harness import generator

# What these do takes memory or time of the GPU, or tells how much there is. A function of a newer header whose name
# looks like one of them must be looked at.
SUSPECTS = re.compile(
    r"cu(MemAlloc(?!Host)|MemCreate|MemPoolCreate|MemPoolImport|MemImport|MemMap|\w*Array(3D)?Create|MemGetInfo"
    r"|DeviceTotalMem|Launch|Graph(Launch|Upload|Instantiate|ExecUpdate|AddNode|AddMemAllocNode)|\w*CtxCreate"
    r"|CtxFromGreenCtx|DevicePrimaryCtxRetain|IpcOpenMemHandle|ImportExternalMemory|StreamBegin\w*Capture)"
)
OF_ITS_OWNER = "the memory belongs to the process that made it, which pays for it"
AT_LAUNCH = "takes nothing before the first launch of the graph, and that is guarded"
OF_PRIMARY = "a part of the primary context's multiprocessors, and that context is guarded"
GRAPHICS = "a graphics program's; the agent sees its memory through NVML"
# Looked at, and left to the driver: why.
LEFT_ALONE = {
    "cuIpcOpenMemHandle": OF_ITS_OWNER,
    "cuImportExternalMemory": OF_ITS_OWNER,
    "cuMemImportFromShareableHandle": OF_ITS_OWNER,
    "cuMemPoolImportFromShareableHandle": OF_ITS_OWNER,
    "cuMemPoolImportPointer": OF_ITS_OWNER,
    "cuGraphAddMemAllocNode": AT_LAUNCH,
    "cuGraphAddNode": AT_LAUNCH,
    "cuGraphExecUpdate": "changes parameters of nodes but neither their kind nor the memory that they take",
    "cuGreenCtxCreate": OF_PRIMARY,
    "cuCtxFromGreenCtx": OF_PRIMARY,
    "cuLaunchHostFunc": "runs on the processor",
    "cuGLCtxCreate": GRAPHICS,
    "cuVDPAUCtxCreate": GRAPHICS,
    "cuStreamBeginCaptureToCig": GRAPHICS,
}


GENERATE = generator()
HOOKS = set(GENERATE.hooks_of(GENERATE.CUDA))
EXPORTS = list(GENERATE.read_exports(GENERATE.CUDA))


def base(name: str) -> str:
    return str(GENERATE.form(name)[0])


def test_guarded_function_is_guarded_in_all_its_versions() -> None:
    guarded = {base(name) for name in HOOKS}
    assert [name for name in EXPORTS if base(name) in guarded and name not in HOOKS] == []


def test_every_hook_is_an_export_of_the_driver() -> None:
    assert HOOKS - set(EXPORTS) == set()


def test_functions_that_use_memory_or_time_are_guarded_or_excepted() -> None:
    open_ones = {base(name) for name in EXPORTS if SUSPECTS.match(name) and name not in HOOKS}
    assert open_ones - LEFT_ALONE.keys() == set()


def test_exceptions_are_listed_only_if_needed() -> None:
    open_ones = {base(name) for name in EXPORTS if SUSPECTS.match(name) and name not in HOOKS}
    assert LEFT_ALONE.keys() - open_ones == set()
