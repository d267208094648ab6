// @NAME@: two of the small operations in Rust: rmsnorm and swiglu. fvlm/kernels.h specifies each function, and fvlm.rs has its
// structs. To add an operation, give the table its functions and accept its op in refusal().
#[macro_use]
mod fvlm;
use fvlm::*;
use std::ffi::CStr;
use std::os::raw::{c_char, c_void};

pub struct Instance {
    _device: Device,
}

unsafe extern "C" fn create(config: *const InstanceConfig, out: *mut *mut Instance, error: *mut ErrorSink) -> Status {
    if !has!(config, host) {
        return fail(error, ERROR_ARGUMENT, "config: struct_size is too small");
    }
    if (*config).device.kind != CPU {
        return fail(error, ERROR_UNSUPPORTED, "runs on the CPU only");
    }
    *out = Box::into_raw(Box::new(Instance { _device: (*config).device }));
    OK
}

unsafe extern "C" fn destroy(instance: *mut Instance) {
    if !instance.is_null() {
        drop(Box::from_raw(instance));
    }
}

/// The reason why this class is not supported.
unsafe fn refusal(query: *const KernelsQuery) -> Option<&'static str> {
    let query = &*query;
    if query.op != OP_RMSNORM && query.op != OP_SWIGLU {
        Some("rmsnorm and swiglu only")
    } else if query.device.kind != CPU {
        Some("runs on the CPU only")
    } else if query.dtype != FLOAT32 || query.gradient_dtype != FLOAT32 {
        Some("float32 only")
    } else if query.options & !(WITH_BACKWARD | WITH_RESIDUAL) != 0 {
        Some("an option is not known here")
    } else {
        None
    }
}

unsafe extern "C" fn supports(query: *const KernelsQuery, support: *mut Support) {
    if !has!(support, reason) {
        return;
    }
    if !has!(query, rope_theta) {
        answer(support, 0, "query: struct_size is too small");
    } else if let Some(reason) = refusal(query) {
        answer(support, 0, reason);
    } else {
        answer(support, 10, "plain loops in Rust"); // the reference has 1; raise it as this gets faster
    }
}

unsafe extern "C" fn requirements(
    _instance: *mut Instance,
    query: *const KernelsQuery,
    out: *mut Requirements,
    error: *mut ErrorSink,
) -> Status {
    if !has!(query, rope_theta) || !has!(out, saved) {
        return fail(error, ERROR_ARGUMENT, "requirements: struct_size is too small");
    }
    let saves = (*query).op == OP_RMSNORM && (*query).options & WITH_BACKWARD != 0;
    (*out).forward_workspace = 0;
    (*out).backward_workspace = 0;
    (*out).saved_count = saves as u32;
    (*out).saved[0] = TensorSpec { dtype: FLOAT32, ndim: 1, shape: [(*query).rows, 0, 0, 0] };
    OK
}

/// Checks the structs of a call and runs the operation's body, whose Err is a reason not to support these tensors. `last`:
/// the last field of version 1.0 of the arguments.
macro_rules! operation {
    ($name:ident, $body:ident, $arguments:ty, $last:ident) => {
        unsafe extern "C" fn $name(
            _instance: *mut Instance,
            call: *const Call,
            query: *const KernelsQuery,
            arguments: *const $arguments,
        ) -> Status {
            if !has!(call, error) {
                return ERROR_ARGUMENT;
            }
            let error = (*call).error;
            if !has!(query, rope_theta) || !has!(arguments, $last) {
                return fail(error, ERROR_ARGUMENT, "struct_size is too small");
            }
            if let Some(reason) = refusal(query) {
                return fail(error, ERROR_UNSUPPORTED, reason);
            }
            guarded(error, || match $body(call, &*query, &*arguments) {
                Ok(()) => OK,
                Err(reason) => fail(error, ERROR_UNSUPPORTED, reason),
            })
        }
    };
}

type Done = Result<(), &'static str>;

unsafe fn matrix(tensor: *const Tensor) -> Result<Rows, &'static str> {
    Rows::of(tensor, 2).ok_or("float32 with contiguous rows only")
}

unsafe fn vector(tensor: *const Tensor) -> Result<Rows, &'static str> {
    Rows::of(tensor, 1).ok_or("float32 parameters only")
}

unsafe fn optional(tensor: *const Tensor) -> Result<Option<Rows>, &'static str> {
    if tensor.is_null() {
        return Ok(None);
    }
    matrix(tensor).map(Some)
}

operation!(rmsnorm_forward, norm, NormForward, saved);
unsafe fn norm(call: *const Call, query: &KernelsQuery, a: &NormForward) -> Done {
    let (x, y, weight) = (matrix(a.x)?, matrix(a.y)?, vector(a.weight)?);
    let (residual, sum) = (optional(a.residual)?, optional(a.sum)?);
    let rstds = if a.saved[0].is_null() { None } else { Some(vector(a.saved[0])?) };
    let width = query.width as usize;
    for_rows(call, query.rows, |row| {
        let mut s = x;
        if let (Some(residual), Some(sum)) = (residual, sum) {
            (0..width).for_each(|i| sum.set(row, i, x.get(row, i) + residual.get(row, i)));
            s = sum;
        }
        let squares: f32 = (0..width).map(|i| s.get(row, i) * s.get(row, i)).sum();
        let rstd = 1.0 / (squares / width as f32 + query.epsilon).sqrt();
        (0..width).for_each(|i| y.set(row, i, s.get(row, i) * rstd * weight.get(0, i)));
        if let Some(rstds) = rstds {
            rstds.set(0, row, rstd);
        }
    });
    Ok(())
}

operation!(rmsnorm_backward, norm_backward, NormBackward, d_bias);
unsafe fn norm_backward(call: *const Call, query: &KernelsQuery, a: &NormBackward) -> Done {
    let (d_y, s, d_x) = (matrix(a.d_y)?, matrix(a.s)?, matrix(a.d_x)?);
    let (weight, rstds, d_sum) = (vector(a.weight)?, vector(a.saved[0])?, optional(a.d_sum)?);
    let (rows, width) = (query.rows as usize, query.width as usize);
    // The weight's gradient first: it reads d_y, which d_x may overwrite.
    if !a.d_weight.is_null() {
        let (d_weight, accumulate) = (vector(a.d_weight)?, a.accumulate != 0);
        for_rows(call, query.width, |i| {
            let sum: f32 = (0..rows).map(|row| d_y.get(row, i) * s.get(row, i) * rstds.get(0, row)).sum();
            d_weight.set(0, i, if accumulate { d_weight.get(0, i) } else { 0.0 } + sum);
        });
    }
    // d_x may alias d_y or d_sum: each element is read before it is written.
    for_rows(call, query.rows, |row| {
        let rstd = rstds.get(0, row);
        let product: f32 = (0..width).map(|i| d_y.get(row, i) * weight.get(0, i) * s.get(row, i)).sum();
        let product = product * rstd * rstd / width as f32;
        for i in 0..width {
            let beside = d_sum.map_or(0.0, |d_sum| d_sum.get(row, i));
            d_x.set(row, i, (d_y.get(row, i) * weight.get(0, i) - product * s.get(row, i)) * rstd + beside);
        }
    });
    Ok(())
}

operation!(swiglu_forward, swiglu, SwigluForward, y);
unsafe fn swiglu(call: *const Call, query: &KernelsQuery, a: &SwigluForward) -> Done {
    let (gate, up, y) = (matrix(a.gate)?, matrix(a.up)?, matrix(a.y)?);
    for_rows(call, query.rows, |row| {
        for i in 0..query.width as usize {
            let x = gate.get(row, i);
            y.set(row, i, x / (1.0 + (-x).exp()) * up.get(row, i));
        }
    });
    Ok(())
}

operation!(swiglu_backward, swiglu_gradients, SwigluBackward, d_up);
unsafe fn swiglu_gradients(call: *const Call, query: &KernelsQuery, a: &SwigluBackward) -> Done {
    let (gate, up, d_y) = (matrix(a.gate)?, matrix(a.up)?, matrix(a.d_y)?);
    let (d_gate, d_up) = (matrix(a.d_gate)?, matrix(a.d_up)?);
    for_rows(call, query.rows, |row| {
        for i in 0..query.width as usize {
            // d_gate and d_up may alias gate and up.
            let (x, up, d_y) = (gate.get(row, i), up.get(row, i), d_y.get(row, i));
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            d_gate.set(row, i, d_y * up * sigmoid * (1.0 + x * (1.0 - sigmoid)));
            d_up.set(row, i, d_y * x * sigmoid);
        }
    });
    Ok(())
}

static TABLE: KernelsTable<Instance> = KernelsTable {
    base: Table { struct_size: std::mem::size_of::<KernelsTable<Instance>>() as u32, create, destroy },
    supports,
    requirements,
    prepare: None,
    rmsnorm_forward: Some(rmsnorm_forward),
    rmsnorm_backward: Some(rmsnorm_backward),
    layernorm_forward: None,
    layernorm_backward: None,
    rope: None,
    swiglu_forward: Some(swiglu_forward),
    swiglu_backward: Some(swiglu_backward),
    others: [None; 9],
};

unsafe extern "C" fn table(kind: *const c_char) -> *const c_void {
    if CStr::from_ptr(kind).to_bytes_with_nul() == KERNELS_KIND {
        &TABLE as *const KernelsTable<Instance> as *const c_void
    } else {
        std::ptr::null()
    }
}

static PLUGIN: Plugin = Plugin {
    struct_size: std::mem::size_of::<Plugin>() as u32,
    abi_major: ABI_MAJOR,
    abi_minor: ABI_MINOR,
    name: b"@NAME@\0".as_ptr() as *const c_char,
    version: b"0.1.0\0".as_ptr() as *const c_char,
    table,
};

#[no_mangle]
pub unsafe extern "C" fn fvlm_plugin_entry_v1(host: *const Host) -> *const Plugin {
    if has!(host, parallel_threads) && (*host).abi_major == ABI_MAJOR {
        &PLUGIN
    } else {
        std::ptr::null()
    }
}
