// @NAME@: two of the small operations in Zig: rmsnorm and swiglu. fvlm/kernels.h specifies each function; fvlm.zig is what
// `zig translate-c` makes of it. To add an operation, give the table its functions and accept its op in refusal().
const std = @import("std");
const c = @import("fvlm.zig");

// Whether the struct reaches to the end of `field`: asked before a struct is read that another version may have filled.
fn has(pointer: anytype, comptime field: []const u8) bool {
    const Struct = @typeInfo(@TypeOf(pointer)).pointer.child;
    return pointer != null and pointer.*.struct_size >= @offsetOf(Struct, field) + @sizeOf(@FieldType(Struct, field));
}

fn write(text: []const u8, to: [*c]u8, capacity: usize) void {
    if (to == null or capacity == 0) return;
    const length = @min(text.len, capacity - 1);
    for (text[0..length], 0..) |letter, i| to[i] = letter;
    to[length] = 0;
}

fn fail(sink: [*c]c.fvlm_error, status: c.fvlm_status, reason: []const u8) c.fvlm_status {
    if (sink != null) write(reason, sink.*.text, sink.*.capacity);
    return status;
}

fn answer(support: [*c]c.fvlm_support, score: i32, reason: []const u8) void {
    support.*.score = score;
    write(reason, &support.*.reason, support.*.reason.len);
}

// A float32 matrix, or a vector as its only row, whose rows may lie apart.
const Rows = struct {
    data: [*]f32,
    stride: i64,

    fn of(tensor: [*c]const c.fvlm_tensor, comptime ndim: usize) error{Unsupported}!Rows {
        if (tensor == null or tensor.*.ndim != ndim or !isFloat32(tensor.*.dtype)) return error.Unsupported;
        if (tensor.*.shape[ndim - 1] > 1 and tensor.*.strides[ndim - 1] != 1) return error.Unsupported;
        const stride = if (ndim > 1) tensor.*.strides[0] else 0;
        // The data of an empty tensor is null, and none of its elements is asked for.
        const data: [*]f32 = if (tensor.*.data) |data| @ptrCast(@alignCast(data)) else @ptrFromInt(@alignOf(f32));
        return .{ .data = data, .stride = stride };
    }

    fn optional(tensor: [*c]const c.fvlm_tensor) error{Unsupported}!?Rows {
        return if (tensor == null) null else try of(tensor, 2);
    }

    fn at(self: Rows, row: i64, column: usize) *f32 {
        const begin: usize = @intCast(row * self.stride);
        return &self.data[begin + column];
    }
};

fn isFloat32(dtype: c.fvlm_dtype) bool {
    return dtype.code == c.FVLM_FLOAT and dtype.bits == 32 and dtype.lanes == 1;
}

// Calls work.run(row) for all rows on the engine's threads.
fn forRows(call: [*c]const c.fvlm_call, rows: i64, work: anytype) void {
    const Work = @TypeOf(work);
    const task = struct {
        fn run(context: ?*anyopaque, begin: i64, end: i64) callconv(.c) void {
            const each: *const Work = @ptrCast(@alignCast(context.?));
            var row = begin;
            while (row < end) : (row += 1) each.run(row);
        }
    };
    const host = call.*.host;
    host.*.parallel_for.?(host, rows, 16, task.run, @ptrCast(@constCast(&work)));
}

const Instance = struct { device: c.fvlm_device };

fn create(config: [*c]const c.fvlm_instance_config, out: [*c]?*c.fvlm_instance, sink: [*c]c.fvlm_error) callconv(.c) c.fvlm_status {
    if (!has(config, "host")) return fail(sink, c.FVLM_ERROR_ARGUMENT, "config: struct_size is too small");
    if (config.*.device.type != c.FVLM_CPU) return fail(sink, c.FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
    const instance = std.heap.c_allocator.create(Instance) catch return fail(sink, c.FVLM_ERROR_MEMORY, "out of memory");
    instance.* = .{ .device = config.*.device };
    out.* = @ptrCast(instance);
    return c.FVLM_OK;
}

fn destroy(instance: ?*c.fvlm_instance) callconv(.c) void {
    const own: *Instance = @ptrCast(@alignCast(instance orelse return));
    std.heap.c_allocator.destroy(own);
}

// The reason why this class is not supported.
fn refusal(query: [*c]const c.fvlm_kernels_query) ?[]const u8 {
    const known: u32 = c.FVLM_WITH_BACKWARD | c.FVLM_WITH_RESIDUAL;
    if (query.*.op != c.FVLM_OP_RMSNORM and query.*.op != c.FVLM_OP_SWIGLU) return "rmsnorm and swiglu only";
    if (query.*.device.type != c.FVLM_CPU) return "runs on the CPU only";
    if (!isFloat32(query.*.dtype) or !isFloat32(query.*.gradient_dtype)) return "float32 only";
    if (query.*.options & ~known != 0) return "an option is not known here";
    return null;
}

fn supports(query: [*c]const c.fvlm_kernels_query, support: [*c]c.fvlm_support) callconv(.c) void {
    if (!has(support, "reason")) return;
    if (!has(query, "rope_theta")) return answer(support, 0, "query: struct_size is too small");
    if (refusal(query)) |reason| return answer(support, 0, reason);
    answer(support, 10, "plain loops in Zig"); // the reference has 1; raise it as this gets faster
}

fn requirements(_: ?*c.fvlm_instance, query: [*c]const c.fvlm_kernels_query, out: [*c]c.fvlm_requirements, sink: [*c]c.fvlm_error) callconv(.c) c.fvlm_status {
    if (!has(query, "rope_theta") or !has(out, "saved"))
        return fail(sink, c.FVLM_ERROR_ARGUMENT, "requirements: struct_size is too small");
    const saves = query.*.op == c.FVLM_OP_RMSNORM and query.*.options & c.FVLM_WITH_BACKWARD != 0;
    out.*.forward_workspace = 0;
    out.*.backward_workspace = 0;
    out.*.saved_count = @intFromBool(saves);
    out.*.saved[0] = .{ .dtype = .{ .code = c.FVLM_FLOAT, .bits = 32, .lanes = 1 }, .ndim = 1, .shape = .{ query.*.rows, 0, 0, 0 } };
    return c.FVLM_OK;
}

// The function of the table that checks the structs of a call and runs the operation's body. `last`: the last field of
// version 1.0 of the arguments.
fn operation(
    comptime Arguments: type,
    comptime last: []const u8,
    comptime body: fn ([*c]const c.fvlm_call, [*c]const c.fvlm_kernels_query, [*c]const Arguments) error{Unsupported}!void,
) fn (?*c.fvlm_instance, [*c]const c.fvlm_call, [*c]const c.fvlm_kernels_query, [*c]const Arguments) callconv(.c) c.fvlm_status {
    return struct {
        fn run(_: ?*c.fvlm_instance, call: [*c]const c.fvlm_call, query: [*c]const c.fvlm_kernels_query, arguments: [*c]const Arguments) callconv(.c) c.fvlm_status {
            if (!has(call, "error")) return c.FVLM_ERROR_ARGUMENT;
            const sink = call.*.@"error";
            if (!has(query, "rope_theta") or !has(arguments, last))
                return fail(sink, c.FVLM_ERROR_ARGUMENT, "struct_size is too small");
            if (refusal(query)) |reason| return fail(sink, c.FVLM_ERROR_UNSUPPORTED, reason);
            body(call, query, arguments) catch
                return fail(sink, c.FVLM_ERROR_UNSUPPORTED, "float32 with contiguous rows only");
            return c.FVLM_OK;
        }
    }.run;
}

const Norm = struct {
    x: Rows,
    y: Rows,
    weight: Rows,
    residual: ?Rows,
    sum: ?Rows,
    rstd: ?Rows, // 1 / sqrt(mean(s^2) + epsilon) of each row, saved by forward for backward
    width: usize,
    epsilon: f32,

    fn run(self: *const Norm, row: i64) void {
        var s = self.x;
        if (self.residual) |residual| {
            s = self.sum.?;
            for (0..self.width) |i| s.at(row, i).* = self.x.at(row, i).* + residual.at(row, i).*;
        }
        var squares: f32 = 0;
        for (0..self.width) |i| squares += s.at(row, i).* * s.at(row, i).*;
        const rstd = 1 / @sqrt(squares / @as(f32, @floatFromInt(self.width)) + self.epsilon);
        for (0..self.width) |i| self.y.at(row, i).* = s.at(row, i).* * rstd * self.weight.at(0, i).*;
        if (self.rstd) |saved| saved.at(0, @intCast(row)).* = rstd;
    }
};

fn norm(call: [*c]const c.fvlm_call, query: [*c]const c.fvlm_kernels_query, a: [*c]const c.fvlm_norm_forward) error{Unsupported}!void {
    const saved = a.*.saved[0];
    forRows(call, query.*.rows, Norm{
        .x = try .of(a.*.x, 2),
        .y = try .of(a.*.y, 2),
        .weight = try .of(a.*.weight, 1),
        .residual = try Rows.optional(a.*.residual),
        .sum = try Rows.optional(a.*.sum),
        .rstd = if (saved == null) null else try Rows.of(saved, 1),
        .width = @intCast(query.*.width),
        .epsilon = query.*.epsilon,
    });
}

const NormBackward = struct {
    d_y: Rows,
    s: Rows,
    d_x: Rows,
    weight: Rows,
    rstd: Rows,
    d_sum: ?Rows,
    width: usize,

    // d_x may alias d_y or d_sum: each element is read before it is written.
    fn run(self: *const NormBackward, row: i64) void {
        const rstd = self.rstd.at(0, @intCast(row)).*;
        var product: f32 = 0;
        for (0..self.width) |i| product += self.d_y.at(row, i).* * self.weight.at(0, i).* * self.s.at(row, i).*;
        product *= rstd * rstd / @as(f32, @floatFromInt(self.width));
        for (0..self.width) |i| {
            const beside = if (self.d_sum) |d_sum| d_sum.at(row, i).* else 0;
            const d_s = self.d_y.at(row, i).* * self.weight.at(0, i).* - product * self.s.at(row, i).*;
            self.d_x.at(row, i).* = d_s * rstd + beside;
        }
    }
};

const NormWeight = struct {
    backward: NormBackward,
    d_weight: Rows,
    rows: i64,
    accumulate: bool,

    fn run(self: *const NormWeight, column: i64) void {
        const i: usize = @intCast(column);
        var sum: f32 = 0;
        var row: i64 = 0;
        while (row < self.rows) : (row += 1)
            sum += self.backward.d_y.at(row, i).* * self.backward.s.at(row, i).* * self.backward.rstd.at(0, @intCast(row)).*;
        const to = self.d_weight.at(0, i);
        to.* = sum + if (self.accumulate) to.* else 0;
    }
};

fn normBackward(call: [*c]const c.fvlm_call, query: [*c]const c.fvlm_kernels_query, a: [*c]const c.fvlm_norm_backward) error{Unsupported}!void {
    const backward = NormBackward{
        .d_y = try .of(a.*.d_y, 2),
        .s = try .of(a.*.s, 2),
        .d_x = try .of(a.*.d_x, 2),
        .weight = try .of(a.*.weight, 1),
        .rstd = try .of(a.*.saved[0], 1),
        .d_sum = try Rows.optional(a.*.d_sum),
        .width = @intCast(query.*.width),
    };
    // The weight's gradient first: it reads d_y, which d_x may overwrite.
    if (a.*.d_weight != null) forRows(call, query.*.width, NormWeight{
        .backward = backward,
        .d_weight = try .of(a.*.d_weight, 1),
        .rows = query.*.rows,
        .accumulate = a.*.accumulate != 0,
    });
    forRows(call, query.*.rows, backward);
}

const Swiglu = struct {
    gate: Rows,
    up: Rows,
    y: Rows,
    width: usize,

    fn run(self: *const Swiglu, row: i64) void {
        for (0..self.width) |i| {
            const x = self.gate.at(row, i).*;
            self.y.at(row, i).* = x / (1 + @exp(-x)) * self.up.at(row, i).*;
        }
    }
};

fn swiglu(call: [*c]const c.fvlm_call, query: [*c]const c.fvlm_kernels_query, a: [*c]const c.fvlm_swiglu_forward) error{Unsupported}!void {
    forRows(call, query.*.rows, Swiglu{
        .gate = try .of(a.*.gate, 2),
        .up = try .of(a.*.up, 2),
        .y = try .of(a.*.y, 2),
        .width = @intCast(query.*.width),
    });
}

const SwigluBackward = struct {
    gate: Rows,
    up: Rows,
    d_y: Rows,
    d_gate: Rows,
    d_up: Rows,
    width: usize,

    // d_gate and d_up may alias gate and up.
    fn run(self: *const SwigluBackward, row: i64) void {
        for (0..self.width) |i| {
            const x, const up, const d_y = .{ self.gate.at(row, i).*, self.up.at(row, i).*, self.d_y.at(row, i).* };
            const sigmoid = 1 / (1 + @exp(-x));
            self.d_gate.at(row, i).* = d_y * up * sigmoid * (1 + x * (1 - sigmoid));
            self.d_up.at(row, i).* = d_y * x * sigmoid;
        }
    }
};

fn swigluBackward(call: [*c]const c.fvlm_call, query: [*c]const c.fvlm_kernels_query, a: [*c]const c.fvlm_swiglu_backward) error{Unsupported}!void {
    forRows(call, query.*.rows, SwigluBackward{
        .gate = try .of(a.*.gate, 2),
        .up = try .of(a.*.up, 2),
        .d_y = try .of(a.*.d_y, 2),
        .d_gate = try .of(a.*.d_gate, 2),
        .d_up = try .of(a.*.d_up, 2),
        .width = @intCast(query.*.width),
    });
}

// Operations that the plugin does not have stay null.
const kernels = c.fvlm_kernels_v1{
    .base = .{ .struct_size = @sizeOf(c.fvlm_kernels_v1), .create = create, .destroy = destroy },
    .supports = supports,
    .requirements = requirements,
    .rmsnorm_forward = operation(c.fvlm_norm_forward, "saved", norm),
    .rmsnorm_backward = operation(c.fvlm_norm_backward, "d_bias", normBackward),
    .swiglu_forward = operation(c.fvlm_swiglu_forward, "y", swiglu),
    .swiglu_backward = operation(c.fvlm_swiglu_backward, "d_up", swigluBackward),
};

fn table(kind: [*c]const u8) callconv(.c) ?*const anyopaque {
    return if (std.mem.orderZ(u8, kind, c.FVLM_KERNELS_KIND) == .eq) &kernels else null;
}

const plugin = c.fvlm_plugin{
    .struct_size = @sizeOf(c.fvlm_plugin),
    .abi_major = c.FVLM_ABI_MAJOR,
    .abi_minor = c.FVLM_ABI_MINOR,
    .name = "@NAME@",
    .version = "0.1.0",
    .table = table,
};

export fn fvlm_plugin_entry_v1(host: [*c]const c.fvlm_host) callconv(.c) ?*const c.fvlm_plugin {
    return if (has(host, "parallel_threads") and host.*.abi_major == c.FVLM_ABI_MAJOR) &plugin else null;
}
