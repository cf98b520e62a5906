"""The kernels of the checks as PTX text, which the driver compiles: no compiler or CUDA library is needed on a node.

Each kernel has one thread for each element. The simulated driver computes these kernels on the CPU by their names
(``native/fake/cuda/kernels.c``), so names and parameters must agree with it.

======================= ==========================================================================================
``vector_add_f32``      ``(a, b, c, n)``: c = a + b
``saxpy_f32``           ``(alpha, x, y, n)``: y = alpha * x + y
``matmul_f32``          ``(a, b, c, n)``: c = a * b, matrices of n rows and n columns
``fill_pattern_u32``    ``(to, seed, step, n)``: word i becomes seed + i * step
``compare_pattern_u32`` ``(at, seed, step, n, result)``: adds the number of wrong words to ``result[0]``, lowers
                        ``result[1]`` to the least index of one, and sets in ``result[2]`` all bits that differ
======================= ==========================================================================================
"""

from __future__ import annotations

_HEADER = """\
.version 6.4
.target sm_50
.address_size 64
"""

# %i = index of this thread; threads behind the last element return
_INDEX = """\
    .reg .pred %outside;
    .reg .u32 %i, %block, %size, %thread;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %size, %thread;
    setp.ge.u32 %outside, %i, %n;
    @%outside ret;
"""

_VECTOR_ADD = (
    """\
.visible .entry vector_add_f32(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_n)
{
    .reg .u32 %n;
    .reg .u64 %a, %b, %c, %at;
    .reg .f32 %x, %y, %sum;
    ld.param.u32 %n, [p_n];
"""
    + _INDEX
    + """\
    ld.param.u64 %a, [p_a];
    ld.param.u64 %b, [p_b];
    ld.param.u64 %c, [p_c];
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %b, %b;
    cvta.to.global.u64 %c, %c;
    mul.wide.u32 %at, %i, 4;
    add.u64 %a, %a, %at;
    add.u64 %b, %b, %at;
    add.u64 %c, %c, %at;
    ld.global.f32 %x, [%a];
    ld.global.f32 %y, [%b];
    add.f32 %sum, %x, %y;
    st.global.f32 [%c], %sum;
    ret;
}
"""
)

_SAXPY = (
    """\
.visible .entry saxpy_f32(.param .f32 p_alpha, .param .u64 p_x, .param .u64 p_y, .param .u32 p_n)
{
    .reg .u32 %n;
    .reg .u64 %a, %b, %at;
    .reg .f32 %alpha, %x, %y;
    ld.param.u32 %n, [p_n];
"""
    + _INDEX
    + """\
    ld.param.f32 %alpha, [p_alpha];
    ld.param.u64 %a, [p_x];
    ld.param.u64 %b, [p_y];
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %b, %b;
    mul.wide.u32 %at, %i, 4;
    add.u64 %a, %a, %at;
    add.u64 %b, %b, %at;
    ld.global.f32 %x, [%a];
    ld.global.f32 %y, [%b];
    fma.rn.f32 %y, %alpha, %x, %y;
    st.global.f32 [%b], %y;
    ret;
}
"""
)

_MATMUL = (
    """\
.visible .entry matmul_f32(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_n)
{
    .reg .u32 %rows, %n, %row, %column, %k;
    .reg .u64 %a, %b, %c, %at, %line;
    .reg .f32 %x, %y, %sum;
    .reg .pred %more;
    ld.param.u32 %rows, [p_n];
    mul.lo.u32 %n, %rows, %rows;
"""
    + _INDEX
    + """\
    ld.param.u64 %a, [p_a];
    ld.param.u64 %b, [p_b];
    ld.param.u64 %c, [p_c];
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %b, %b;
    cvta.to.global.u64 %c, %c;
    mul.wide.u32 %at, %i, 4;
    add.u64 %c, %c, %at;
    mul.wide.u32 %line, %rows, 4;
    div.u32 %row, %i, %rows;
    rem.u32 %column, %i, %rows;
    mul.wide.u32 %at, %row, 4;
    mul.lo.u64 %at, %at, %line;
    shr.u64 %at, %at, 2;
    add.u64 %a, %a, %at;
    mul.wide.u32 %at, %column, 4;
    add.u64 %b, %b, %at;
    mov.f32 %sum, 0f00000000;
    mov.u32 %k, 0;
again:
    ld.global.f32 %x, [%a];
    ld.global.f32 %y, [%b];
    fma.rn.f32 %sum, %x, %y, %sum;
    add.u64 %a, %a, 4;
    add.u64 %b, %b, %line;
    add.u32 %k, %k, 1;
    setp.lt.u32 %more, %k, %rows;
    @%more bra again;
    st.global.f32 [%c], %sum;
    ret;
}
"""
)

_FILL = (
    """\
.visible .entry fill_pattern_u32(.param .u64 p_to, .param .u32 p_seed, .param .u32 p_step, .param .u32 p_n)
{
    .reg .u32 %n, %seed, %step, %word;
    .reg .u64 %to, %at;
    ld.param.u32 %n, [p_n];
"""
    + _INDEX
    + """\
    ld.param.u64 %to, [p_to];
    ld.param.u32 %seed, [p_seed];
    ld.param.u32 %step, [p_step];
    cvta.to.global.u64 %to, %to;
    mul.wide.u32 %at, %i, 4;
    add.u64 %to, %to, %at;
    mad.lo.u32 %word, %i, %step, %seed;
    st.global.u32 [%to], %word;
    ret;
}
"""
)

_COMPARE = (
    """\
.visible .entry compare_pattern_u32(.param .u64 p_at, .param .u32 p_seed, .param .u32 p_step, .param .u32 p_n,
                                    .param .u64 p_result)
{
    .reg .u32 %n, %seed, %step, %word, %wrong;
    .reg .u64 %from, %at, %result;
    .reg .pred %right;
    ld.param.u32 %n, [p_n];
"""
    + _INDEX
    + """\
    ld.param.u64 %from, [p_at];
    ld.param.u32 %seed, [p_seed];
    ld.param.u32 %step, [p_step];
    ld.param.u64 %result, [p_result];
    cvta.to.global.u64 %from, %from;
    cvta.to.global.u64 %result, %result;
    mul.wide.u32 %at, %i, 4;
    add.u64 %from, %from, %at;
    mad.lo.u32 %word, %i, %step, %seed;
    ld.global.u32 %wrong, [%from];
    xor.b32 %wrong, %wrong, %word;
    setp.eq.u32 %right, %wrong, 0;
    @%right ret;
    red.global.add.u32 [%result], 1;
    red.global.min.u32 [%result+4], %i;
    red.global.or.b32 [%result+8], %wrong;
    ret;
}
"""
)

PTX = _HEADER + _VECTOR_ADD + _SAXPY + _MATMUL + _FILL + _COMPARE
NAMES = ("vector_add_f32", "saxpy_f32", "matmul_f32", "fill_pattern_u32", "compare_pattern_u32")
