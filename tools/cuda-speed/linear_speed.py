"""Times a kernels plugin's linear beside PyTorch's in the same process, at the sizes of fVLM-135M, and holds its numbers
to float64.

    LD_LIBRARY_PATH=<torch's libraries> python linear_speed.py kernels-cublaslt.so [--log]

Each call is recorded as a part of a CUDA graph that goes through so many sets of buffers that none stays in the L2; the
median of five replays counts. "chosen": the algorithms that prepare() timed; "first": those of FVLM_DETERMINISTIC.
"""
import ctypes as c
import sys

import torch
import torch.nn.functional as F

LINEAR, BACKWARD, BIAS, GELU = 7, 1, 4, 8
DTYPES = {torch.bfloat16: (4, 16), torch.float16: (2, 16), torch.float32: (2, 32)}


def struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": list(fields)})


P, I32, U32, I64, U64 = c.c_void_p, c.c_int32, c.c_uint32, c.c_int64, c.c_uint64
Device = struct("Device", ("type", I32), ("id", I32))
Dtype = struct("Dtype", ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16))
Tensor = struct("Tensor", ("data", P), ("device", Device), ("ndim", I32), ("dtype", Dtype), ("shape", c.POINTER(I64)),
                ("strides", c.POINTER(I64)), ("byte_offset", U64))
Spec = struct("Spec", ("dtype", Dtype), ("ndim", I32), ("shape", I64 * 4))
Error = struct("Error", ("struct_size", U32), ("capacity", U32), ("text", c.c_char_p))
Host = struct("Host", ("struct_size", U32), ("major", U32), ("minor", U32), ("version", c.c_char_p), ("log", P),
              ("parallel_for", P), ("parallel_threads", P))
Call = struct("Call", ("struct_size", U32), ("flags", U32), ("device", Device), ("stream", P), ("workspace", P),
              ("workspace_size", U64), ("seed", U64), ("offset", U64), ("offset_device", P), ("host", P), ("error", P))
Needs = struct("Needs", ("struct_size", U32), ("saved_count", U32), ("forward", U64), ("backward", U64),
               ("saved", Spec * 4))
Config = struct("Config", ("struct_size", U32), ("device", Device), ("host", P))
Query = struct("Query", ("struct_size", U32), ("op", I32), ("device", Device), ("dtype", Dtype), ("gradient", Dtype),
               ("options", U32), ("rows", I64), ("width", I64), ("inner", I64), ("heads", I32), ("head_dim", I32),
               ("rotary_dim", I32), ("epsilon", c.c_float), ("theta", c.c_float))
Forward = struct("Forward", ("struct_size", U32), *[(n, P) for n in ("x", "weight", "bias", "y", "pre_activation")])
InputGradient = struct("InputGradient", ("struct_size", U32), *[(n, P) for n in ("d_y", "weight", "pre", "d_x")])
WeightGradient = struct("WeightGradient", ("struct_size", U32), ("accumulate", I32),
                        *[(n, P) for n in ("d_y", "x", "d_weight", "d_bias")])
OPS = ("rmsnorm_f rmsnorm_b layernorm_f layernorm_b rope swiglu_f swiglu_b gelu_f gelu_b scale_f scale_b "
       "forward input_gradient weight_gradient").split()
Table = struct("Table", ("struct_size", U32), ("create", P), ("destroy", P), ("supports", P), ("requirements", P),
               ("prepare", P), *[(n, P) for n in OPS])
Plugin = struct("Plugin", ("struct_size", U32), ("major", U32), ("minor", U32), ("name", c.c_char_p),
                ("version", c.c_char_p), ("table", c.CFUNCTYPE(P, c.c_char_p)))

LOG = c.CFUNCTYPE(None, P, I32, c.c_char_p)
THREADS = c.CFUNCTYPE(I32, P)
FUNCTION = c.CFUNCTYPE(I32, P, P, P, P)
_log = LOG(lambda host, level, text: print("  ", text.decode()) if "--log" in sys.argv else None)
_threads = THREADS(lambda host: 1)
HOST = Host(c.sizeof(Host), 1, 0, b"speed", c.cast(_log, P), c.cast(_threads, P), c.cast(_threads, P))
TEXT = c.create_string_buffer(512)
ERROR = Error(c.sizeof(Error), 512, c.cast(TEXT, c.c_char_p))


def dtype(torch_dtype):
    return Dtype(*DTYPES[torch_dtype], 1)


def need(status, what):
    if status:
        sys.exit(f"{what}: {status}: {TEXT.value.decode()}")


class Linear:
    """One shape class of the plugin, prepared for."""

    def __init__(self, table, instance, rows, inner, width, options, gradient=torch.bfloat16, flags=0):
        self.table, self.instance, self.flags, self.kept = table, instance, flags, []
        self.query = Query(c.sizeof(Query), LINEAR, Device(2, 0), dtype(torch.bfloat16), dtype(gradient), options, rows,
                           width, inner)
        needs = Needs(c.sizeof(Needs))
        ask = c.CFUNCTYPE(I32, P, P, P, P)(table.requirements)
        need(ask(instance, c.addressof(self.query), c.addressof(needs), c.addressof(ERROR)), "requirements")
        self.workspace = torch.empty(max(needs.forward, needs.backward) + 256, dtype=torch.uint8, device="cuda")
        prepare = c.CFUNCTYPE(I32, P, P, P)(table.prepare)
        need(prepare(instance, c.addressof(self.call()), c.addressof(self.query)), "prepare")

    def call(self):
        begin = (self.workspace.data_ptr() + 255) // 256 * 256
        made = Call(c.sizeof(Call), self.flags, Device(2, 0), torch.cuda.current_stream().cuda_stream, begin,
                    self.workspace.numel() - 256, 0, 0, None, c.addressof(HOST), c.addressof(ERROR))
        self.kept.append(made)
        return made

    def bind(self, tensor):
        if tensor is None:
            return None
        shape, strides = (I64 * tensor.dim())(*tensor.shape), (I64 * tensor.dim())(*tensor.stride())
        made = Tensor(tensor.data_ptr(), Device(2, 0), tensor.dim(), dtype(tensor.dtype), shape, strides, 0)
        self.kept += [made, shape, strides]
        return c.addressof(made)

    def run(self, name, arguments):
        function = FUNCTION(getattr(self.table, name))
        need(function(self.instance, c.addressof(self.call()), c.addressof(self.query), c.addressof(arguments)), name)

    def forward(self, x, weight, bias, y, pre):
        b = self.bind
        self.run("forward", Forward(c.sizeof(Forward), b(x), b(weight), b(bias), b(y), b(pre)))

    def input_gradient(self, d_y, weight, pre, d_x):
        b = self.bind
        self.run("input_gradient", InputGradient(c.sizeof(InputGradient), b(d_y), b(weight), b(pre), b(d_x)))

    def weight_gradient(self, d_y, x, d_weight, d_bias, accumulate=0):
        b = self.bind
        self.run("weight_gradient", WeightGradient(c.sizeof(WeightGradient), accumulate, b(d_y), b(x), b(d_weight),
                                                   b(d_bias)))


def microseconds(calls):
    rounds, kept = max(1, 24 // len(calls)), []
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            kept = [call() for call in calls]  # so that PyTorch's results do not share their memory either
    times = []
    for i in range(7):
        before, after = torch.cuda.Event(True), torch.cuda.Event(True)
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        if i > 1:
            times.append(before.elapsed_time(after))
    return sorted(times)[2] * 1e3 / rounds / len(calls)


def random(*shape, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


class Set:
    def __init__(self, rows, inner, width, bias, gelu, gelu_before, gradient):
        self.x, self.w = random(rows, inner), random(width, inner, scale=inner**-0.5)
        self.b = random(width) if bias else None
        self.y, self.pre = random(rows, width), random(rows, width) if gelu else None
        self.d_y, self.d_x = random(rows, width), random(rows, inner)
        self.before = random(rows, inner) if gelu_before else None
        self.d_w, self.d_b = random(width, inner, dtype=gradient), random(width, dtype=gradient) if bias else None


def off(got, exact):
    return ((got.double() - exact).norm() / exact.norm()).item()


def check(op, s, gelu):
    """The largest relative error of one call of each, against float64."""
    x, w, d_y = s.x.double(), s.w.double(), s.d_y.double()
    op.forward(s.x, s.w, s.b, s.y, s.pre)
    exact = x @ w.t() + (s.b.double() if s.b is not None else 0)
    errors = [off(s.y, F.gelu(exact) if gelu else exact)]
    op.input_gradient(s.d_y, s.w, s.before, s.d_x)
    exact = d_y @ w
    if s.before is not None:
        exact = torch.ops.aten.gelu_backward(exact, s.before.double())
    errors.append(off(s.d_x, exact))
    op.weight_gradient(s.d_y, s.x, s.d_w, s.d_b)
    errors.append(off(s.d_w, d_y.t() @ x))
    if s.b is not None:
        errors.append(off(s.d_b, d_y.sum(0)))
    return max(errors)


def compare(table, instance, name, rows, inner, width, bias=False, gelu=False, gelu_before=False,
            gradient=torch.bfloat16):
    options = BACKWARD | (BIAS if bias else 0) | (GELU if gelu else 0)
    chosen, first = (Linear(table, instance, rows, inner, width, options, gradient, flags) for flags in (0, 1))
    size = 2 * (2 * rows * (inner + width) + 2 * inner * width)
    sets = [Set(rows, inner, width, bias, gelu, gelu_before, gradient) for _ in range(max(1, min(12, 200_000_000 // size)))]
    error = max(check(chosen, sets[0], gelu), check(first, sets[0], gelu))

    def torch_forward(s):
        y = F.linear(s.x, s.w, s.b)
        return F.gelu(y) if gelu else y

    def torch_input(s):
        d_x = s.d_y @ s.w
        return torch.ops.aten.gelu_backward(d_x, s.before) if gelu_before else d_x

    def torch_weight(s):
        d_w = torch.mm(s.d_y.t(), s.x, out_dtype=gradient) if gradient != s.x.dtype else s.d_y.t() @ s.x
        return d_w, s.d_y.sum(0) if bias else None

    works = [("forward" + " +bias" * bias + " +gelu" * gelu,
              lambda op, s: op.forward(s.x, s.w, s.b, s.y, s.pre), torch_forward),
             ("input gradient" + " *gelu'" * gelu_before,
              lambda op, s: op.input_gradient(s.d_y, s.w, s.before, s.d_x), torch_input),
             ("weight gradient" + " +bias" * bias,
              lambda op, s: op.weight_gradient(s.d_y, s.x, s.d_w, s.d_b), torch_weight)]
    for what, ours, theirs in works:
        times = [microseconds([lambda s=s: ours(op, s) for s in sets]) for op in (chosen, first)]
        times.append(microseconds([lambda s=s: theirs(s) for s in sets]))
        teraflops = 2e-6 * rows * inner * width / times[0]
        print(f"| {name}: {rows} x {inner} -> {width} | {what} | {times[0]:.1f} | {teraflops:.0f} | {times[1]:.1f} | "
              f"{times[2]:.1f} | {times[2] / times[0]:.2f} | {error:.1e} |", flush=True)


def which_gelu():
    """What cuBLASLt's own GELU epilogue computes, as PyTorch calls it."""
    x, w, b = (torch.randn(*shape, device="cuda") for shape in ((512, 384), (1536, 384), (1536,)))
    w /= 384**0.5
    got = torch._addmm_activation(b, x, w.t(), use_gelu=True).double()
    exact = x.double() @ w.double().t() + b.double()
    for kind in ("none", "tanh"):
        print(f"cuBLASLt's GELU in float32 is off by {(got - F.gelu(exact, approximate=kind)).abs().max():.1e} from "
              f"{'erf' if kind == 'none' else 'tanh'}")
    x, w, b = random(16448, 384), random(1536, 384, scale=384**-0.5), random(1536)
    time = microseconds([lambda: torch._addmm_activation(b, x, w.t(), use_gelu=True)])
    print(f"16448 x 384 -> 1536 in bfloat16 with it, the pre-activation not kept: {time:.1f} us")


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    library = c.CDLL(sys.argv[1])
    entry = library.fvlm_plugin_entry_v1
    entry.restype, entry.argtypes = c.POINTER(Plugin), [P]
    plugin = entry(c.addressof(HOST)).contents
    table = Table.from_address(plugin.table(b"fvlm.kernels/1"))
    config, instance = Config(c.sizeof(Config), Device(2, 0), c.addressof(HOST)), P()
    create = c.CFUNCTYPE(I32, P, P, P)(table.create)
    need(create(c.addressof(config), c.addressof(instance), c.addressof(ERROR)), "create")
    print(torch.cuda.get_device_name(), torch.__version__)
    which_gelu()
    print("| shape | call | chosen us | TFLOP/s | first us | PyTorch us | times | off |\n|---|---|---|---|---|---|---|---|")
    for batch in (8, 64):
        tower, decoder, coarse = batch * 8 * 257, batch * 136, batch * 8
        compare(table, instance, "tower qkv", tower, 384, 1152, bias=True)
        compare(table, instance, "tower proj", tower, 384, 384, bias=True)
        compare(table, instance, "tower up", tower, 384, 1536, bias=True, gelu=True)
        compare(table, instance, "tower down", tower, 1536, 384, bias=True, gelu_before=True)
        for name, rows in (("decoder", decoder), ("coarse", coarse)):
            if name == "coarse" and batch == 64:
                continue
            compare(table, instance, name + " qkv", rows, 576, 960)
            compare(table, instance, name + " o", rows, 576, 576)
            compare(table, instance, name + " gate up", rows, 576, 3072)
            compare(table, instance, name + " down", rows, 1536, 576)
    compare(table, instance, "float32 gradients, tower up", 16448, 384, 1536, bias=True, gelu=True,
            gradient=torch.float32)
    compare(table, instance, "vocabulary", 1024, 576, 49152)


if __name__ == "__main__":
    main()
