// fvlm.rs: the structs of fvlm/abi.h and fvlm/kernels.h (kind "fvlm.kernels/1") for Rust, and what the headers' inline
// functions do. The headers specify each field; those of the operations that no function of the table has here are left out.
// Sizes are asserted below, and the engine refuses a struct_size that it does not know.
#![allow(dead_code)]
use std::any::Any;
use std::ffi::c_void;
use std::os::raw::c_char;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Mutex;

pub const ABI_MAJOR: u32 = 1;
pub const ABI_MINOR: u32 = 0;

pub type Status = i32;
pub const OK: Status = 0;
pub const ERROR_ARGUMENT: Status = 1;
pub const ERROR_UNSUPPORTED: Status = 2;
pub const ERROR_WORKSPACE: Status = 3;
pub const ERROR_DEVICE: Status = 4;
pub const ERROR_MEMORY: Status = 5;
pub const ERROR_INTERNAL: Status = 6;

pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;
pub const FLOAT: u8 = 2;
pub const BFLOAT: u8 = 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Device {
    pub kind: i32, // `type` in the header
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dtype {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}
pub const FLOAT32: Dtype = Dtype { code: FLOAT, bits: 32, lanes: 1 };

#[repr(C)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device: Device,
    pub ndim: i32,
    pub dtype: Dtype,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TensorSpec {
    pub dtype: Dtype,
    pub ndim: i32,
    pub shape: [i64; 4],
}

#[repr(C)]
pub struct ErrorSink {
    pub struct_size: u32,
    pub capacity: u32,
    pub text: *mut c_char,
}

#[repr(C)]
pub struct Host {
    pub struct_size: u32,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub engine_version: *const c_char,
    pub log: unsafe extern "C" fn(*const Host, i32, *const c_char),
    pub parallel_for:
        unsafe extern "C" fn(*const Host, i64, i64, unsafe extern "C" fn(*mut c_void, i64, i64), *mut c_void),
    pub parallel_threads: unsafe extern "C" fn(*const Host) -> i32,
}

#[repr(C)]
pub struct Call {
    pub struct_size: u32,
    pub flags: u32,
    pub device: Device,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
    pub random_seed: u64,
    pub random_offset: u64,
    pub random_offset_device: *const u64,
    pub host: *const Host,
    pub error: *mut ErrorSink,
}

#[repr(C)]
pub struct Plugin {
    pub struct_size: u32,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub name: *const c_char,
    pub version: *const c_char,
    pub table: unsafe extern "C" fn(*const c_char) -> *const c_void,
}
unsafe impl Sync for Plugin {} // its strings are constants

#[repr(C)]
pub struct Support {
    pub struct_size: u32,
    pub score: i32,
    pub reason: [u8; 240],
}

#[repr(C)]
pub struct Requirements {
    pub struct_size: u32,
    pub saved_count: u32,
    pub forward_workspace: u64,
    pub backward_workspace: u64,
    pub saved: [TensorSpec; 4],
    pub prepare_workspace: u64, // appended to version 1.0, as the next one: has() first
    pub deterministic_workspace: u64,
}

#[repr(C)]
pub struct InstanceConfig {
    pub struct_size: u32,
    pub device: Device,
    pub host: *const Host,
}

#[repr(C)]
pub struct Table<Instance: 'static> {
    pub struct_size: u32,
    pub create: unsafe extern "C" fn(*const InstanceConfig, *mut *mut Instance, *mut ErrorSink) -> Status,
    pub destroy: unsafe extern "C" fn(*mut Instance),
}

// The kind kernels.

pub const KERNELS_KIND: &[u8] = b"fvlm.kernels/1\0";
pub const OP_RMSNORM: i32 = 1;
pub const OP_SWIGLU: i32 = 4;
pub const WITH_BACKWARD: u32 = 1 << 0;
pub const WITH_RESIDUAL: u32 = 1 << 1;

#[repr(C)]
pub struct KernelsQuery {
    pub struct_size: u32,
    pub op: i32,
    pub device: Device,
    pub dtype: Dtype,
    pub gradient_dtype: Dtype,
    pub options: u32,
    pub rows: i64,
    pub width: i64,
    pub inner: i64,
    pub heads: i32,
    pub head_dim: i32,
    pub rotary_dim: i32,
    pub epsilon: f32,
    pub rope_theta: f32,
}

#[repr(C)]
pub struct NormForward {
    pub struct_size: u32,
    pub x: *const Tensor,
    pub residual: *const Tensor,
    pub weight: *const Tensor,
    pub bias: *const Tensor,
    pub y: *const Tensor,
    pub sum: *const Tensor,
    pub saved: [*const Tensor; 4],
}

#[repr(C)]
pub struct NormBackward {
    pub struct_size: u32,
    pub accumulate: i32,
    pub d_y: *const Tensor,
    pub d_sum: *const Tensor,
    pub s: *const Tensor,
    pub weight: *const Tensor,
    pub saved: [*const Tensor; 4],
    pub d_x: *const Tensor,
    pub d_weight: *const Tensor,
    pub d_bias: *const Tensor,
}

#[repr(C)]
pub struct SwigluForward {
    pub struct_size: u32,
    pub gate: *const Tensor,
    pub up: *const Tensor,
    pub y: *const Tensor,
}

#[repr(C)]
pub struct SwigluBackward {
    pub struct_size: u32,
    pub gate: *const Tensor,
    pub up: *const Tensor,
    pub d_y: *const Tensor,
    pub d_gate: *const Tensor,
    pub d_up: *const Tensor,
}

pub type Operation<Instance, Arguments> =
    Option<unsafe extern "C" fn(*mut Instance, *const Call, *const KernelsQuery, *const Arguments) -> Status>;

// An operation that this plugin does not have is None, whatever its arguments are.
#[repr(C)]
pub struct KernelsTable<Instance: 'static> {
    pub base: Table<Instance>,
    pub supports: unsafe extern "C" fn(*const KernelsQuery, *mut Support),
    pub requirements:
        unsafe extern "C" fn(*mut Instance, *const KernelsQuery, *mut Requirements, *mut ErrorSink) -> Status,
    pub prepare: Option<unsafe extern "C" fn(*mut Instance, *const Call, *const KernelsQuery) -> Status>,
    pub rmsnorm_forward: Operation<Instance, NormForward>,
    pub rmsnorm_backward: Operation<Instance, NormBackward>,
    pub layernorm_forward: Operation<Instance, NormForward>,
    pub layernorm_backward: Operation<Instance, NormBackward>,
    pub rope: Operation<Instance, c_void>,
    pub swiglu_forward: Operation<Instance, SwigluForward>,
    pub swiglu_backward: Operation<Instance, SwigluBackward>,
    pub others: [Operation<Instance, c_void>; 9], // bias_gelu, layerscale, linear, scaled_rows
}

// As the engine's compiler lays them out on 64-bit machines.
const _: () = assert!(std::mem::size_of::<Tensor>() == 48 && std::mem::size_of::<TensorSpec>() == 40);
const _: () = assert!(std::mem::size_of::<Call>() == 80 && std::mem::size_of::<Host>() == 48);
const _: () = assert!(std::mem::size_of::<Requirements>() == 200 && std::mem::size_of::<Support>() == 248);
const _: () = assert!(std::mem::size_of::<KernelsQuery>() == 80 && std::mem::size_of::<KernelsTable<u8>>() == 176);

/// Whether the struct reaches to the end of `field`: asked before a struct is read that another version may have filled.
#[macro_export]
macro_rules! has {
    ($pointer:expr, $field:ident) => {
        !$pointer.is_null() && {
            let begin = $pointer as usize;
            let end = std::ptr::addr_of!((*$pointer).$field).add(1) as usize;
            std::ptr::addr_of!((*$pointer).struct_size).read() as usize >= end - begin
        }
    };
}

unsafe fn write_text(text: &str, to: *mut u8, capacity: usize) {
    if to.is_null() || capacity == 0 {
        return;
    }
    let length = text.len().min(capacity - 1);
    std::ptr::copy_nonoverlapping(text.as_ptr(), to, length);
    *to.add(length) = 0;
}

/// Writes the reason into the error sink, which may be null, and returns the status.
pub unsafe fn fail(error: *mut ErrorSink, status: Status, reason: &str) -> Status {
    if !error.is_null() {
        write_text(reason, (*error).text as *mut u8, (*error).capacity as usize);
    }
    status
}

pub unsafe fn answer(support: *mut Support, score: i32, reason: &str) {
    (*support).score = score;
    let to = std::ptr::addr_of_mut!((*support).reason) as *mut u8;
    write_text(reason, to, 240);
}

/// Runs `work`; a panic, which must not leave the plugin, becomes a status.
pub unsafe fn guarded(error: *mut ErrorSink, work: impl FnOnce() -> Status) -> Status {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| fail(error, ERROR_INTERNAL, "the plugin panicked"))
}

/// Calls work(row) for all rows on the engine's threads. A panic of one of them continues in the caller.
pub unsafe fn for_rows<Work: Fn(usize) + Sync>(call: *const Call, rows: i64, work: Work) {
    struct Task<'a, Work> {
        work: &'a Work,
        panic: Mutex<Option<Box<dyn Any + Send>>>,
    }
    unsafe extern "C" fn run<Work: Fn(usize) + Sync>(context: *mut c_void, begin: i64, end: i64) {
        let task = &*(context as *const Task<Work>);
        let piece = AssertUnwindSafe(|| (begin..end).for_each(|row| (task.work)(row as usize)));
        if let Err(panic) = catch_unwind(piece) {
            *task.panic.lock().unwrap() = Some(panic);
        }
    }
    let task = Task { work: &work, panic: Mutex::new(None) };
    let host = (*call).host;
    ((*host).parallel_for)(host, rows, 16, run::<Work>, &task as *const Task<Work> as *mut c_void);
    if let Some(panic) = task.panic.into_inner().unwrap() {
        resume_unwind(panic);
    }
}

/// A float32 matrix, or a vector as its only row, whose rows may lie apart.
#[derive(Clone, Copy)]
pub struct Rows {
    data: *mut f32,
    stride: i64,
    width: usize,
}
unsafe impl Sync for Rows {} // whoever writes rows writes each of them from one thread

impl Rows {
    /// None: null, or of another type, rank or layout.
    pub unsafe fn of(tensor: *const Tensor, ndim: i32) -> Option<Rows> {
        if tensor.is_null() || (*tensor).ndim != ndim || (*tensor).dtype != FLOAT32 {
            return None;
        }
        let last = ndim as usize - 1;
        let width = *(*tensor).shape.add(last);
        if width > 1 && *(*tensor).strides.add(last) != 1 {
            return None;
        }
        let stride = if ndim > 1 { *(*tensor).strides } else { 0 };
        Some(Rows { data: (*tensor).data as *mut f32, stride, width: width as usize })
    }

    /// The element may be shared with another tensor of the call, so rows are no slices.
    pub unsafe fn get(&self, row: usize, column: usize) -> f32 {
        debug_assert!(column < self.width);
        *self.data.offset(row as isize * self.stride as isize + column as isize)
    }

    pub unsafe fn set(&self, row: usize, column: usize, value: f32) {
        debug_assert!(column < self.width);
        *self.data.offset(row as isize * self.stride as isize + column as isize) = value;
    }
}
