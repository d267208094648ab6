"""SwiGLU in Triton, the example of tools/triton-plugin: y = silu(gate) * up and its gradients, in float32.

A program works on a block of a row. Rows may lie apart (strides), and d_gate and d_up may be the memory of gate and up: each
element is read before it is written."""
import triton
import triton.language as tl

NAME = "kernels-triton"
OPERATION = "swiglu"
BLOCK = 1024
WARPS = 4


@triton.jit
def forward(gate, up, y, rows, width, gate_stride, up_stride, y_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(gate + row * gate_stride + column, inside).to(tl.float32)
    u = tl.load(up + row * up_stride + column, inside).to(tl.float32)
    result = x / (1 + tl.exp(-x)) * u
    tl.store(y + row * y_stride + column, result.to(y.dtype.element_ty), inside)


@triton.jit
def backward(gate, up, d_y, d_gate, d_up, rows, width, gate_stride, up_stride, d_y_stride, d_gate_stride, d_up_stride,
             BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(gate + row * gate_stride + column, inside).to(tl.float32)
    u = tl.load(up + row * up_stride + column, inside).to(tl.float32)
    d = tl.load(d_y + row * d_y_stride + column, inside).to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-x))
    tl.store(d_gate + row * d_gate_stride + column, (d * u * sigmoid * (1 + x * (1 - sigmoid))).to(d_gate.dtype.element_ty),
             inside)
    tl.store(d_up + row * d_up_stride + column, (d * x * sigmoid).to(d_up.dtype.element_ty), inside)
