#include "ops/backend.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "device/runtime.h"
#include "ops/dry_run.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fvlm::ops {
namespace {

constexpr uint64_t alignment = 256;
constexpr double logged_milliseconds = 1;         // that a setup call takes at least to be logged
constexpr uint64_t max_bytes = uint64_t{1} << 46; // a plugin that requests more is taken to be defective

Error defect(const Instance& instance, std::string_view operation, std::string what) {
  return Error(ErrorKind::plugin, "{}: {}", operation, what)
      .at("plugin " + instance.plugin)
      .advise("remove it from the recipe's list for this kind, or report this to its author");
}

// NULL on the CPU and in a dry run.
void* current_stream(at::Device device) {
  if (device.is_cpu() || is_dry_run(device)) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStream(device).native_handle();
}

} // namespace

Instance::Instance(std::string plugin_name, std::string_view kind_label, const fvlm_table& table, const fvlm_host* host,
                   at::Device on)
    : plugin(std::move(plugin_name)), kind(kind_label), device(on), table_(table), host_(host) {
  install_crash_handlers();
  fvlm_instance_config config{sizeof config, abi_device(device), host};
  ErrorSink sink;
  guard_call(
      plugin, kind + " create", sink, [&] { return table_.create(&config, &instance_, sink.get()); },
      [&] { return "\n  device: " + device.str(); });
}

Instance::~Instance() {
  const ActiveCall mark(plugin, "destroy");
  table_.destroy(instance_);
}

void Instance::reserve(uint64_t bytes) {
  const int64_t wanted = static_cast<int64_t>(bytes == 0 ? 0 : bytes + alignment);
  auto& [workspace, is_captured] = workspaces_[current_stream(device)];
  if (workspace.defined() && workspace.numel() >= wanted) return;
  if (is_captured) outgrown_.push_back(workspace);
  is_captured = false;
  workspace.reset(); // before the new one is allocated: there may not be memory for both
  try {
    workspace = at::empty({wanted}, at::TensorOptions().dtype(at::kByte).device(device));
  } catch (const c10::Error&) { // LibTorch's message names neither the plugin nor the size
    throw defect(*this, kind, fmt::format("out of memory for its workspace of {}", human_bytes(bytes)));
  }
}

at::Tensor Instance::temporary_workspace(uint64_t bytes) const {
  try {
    return at::empty({static_cast<int64_t>(bytes + alignment)}, at::TensorOptions().dtype(at::kByte).device(device));
  } catch (const c10::Error&) {
    return {};
  }
}

void Instance::use(fvlm_call& call, const at::Tensor& workspace, uint64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(workspace.data_ptr());
  call.workspace = reinterpret_cast<void*>((begin + alignment - 1) / alignment * alignment);
  call.workspace_size = bytes;
}

fvlm_call Instance::call(uint64_t workspace_bytes) {
  fvlm_call call{};
  call.struct_size = sizeof call;
  call.flags = state.flags | (device::is_capturing() ? uint32_t{FVLM_CAPTURING} : 0);
  call.device = abi_device(device);
  call.stream = current_stream(device);
  if (workspace_bytes > 0) {
    reserve(workspace_bytes); // a stream other than that of the setup has no workspace yet
    auto& [workspace, is_captured] = workspaces_.at(call.stream);
    is_captured = is_captured || device::is_capturing();
    use(call, workspace, workspace_bytes);
  }
  call.random_seed = state.random_seed;
  call.random_offset = state.random_offset;
  call.random_offset_device = state.random_offset_device;
  call.host = host_;
  return call;
}

at::Tensor output_or_new(const at::Tensor& into, at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return into.defined() ? into : at::empty(shape, at::TensorOptions().dtype(type).device(device));
}

namespace detail {

void call_setup(const Instance& instance, std::string_view operation, std::string_view function,
                const std::function<fvlm_status(fvlm_error*)>& call) {
  ErrorSink sink;
  const double begin = steady_seconds();
  guard_call(
      instance.plugin, fmt::format("{} {}", operation, function), sink, [&] { return call(sink.get()); },
      [] { return std::string(); });
  const double took = 1e3 * (steady_seconds() - begin);
  if (took >= logged_milliseconds) log_debug("{} {} of {} took {:.1f} ms", operation, function, instance.plugin, took);
}

void require_support(const Instance& instance, std::string_view operation, const fvlm_support& support) {
  if (support.score > 0) return;
  const std::string reason(support.reason, strnlen(support.reason, sizeof support.reason));
  throw defect(instance, operation, reason.empty() ? "refused without a reason" : reason)
      .advise("select another plugin, or \"reference\", for this operation");
}

void require_sane(const Instance& instance, std::string_view operation, const fvlm_requirements& requirements) {
  if (std::max({requirements.forward_workspace, requirements.backward_workspace, requirements.prepare_workspace,
                requirements.deterministic_workspace}) > max_bytes)
    throw defect(instance, operation,
                 fmt::format("requests workspaces of {}, {} and {} bytes", requirements.forward_workspace,
                             requirements.backward_workspace, requirements.prepare_workspace));
  if (requirements.saved_count > FVLM_MAX_SAVED)
    throw defect(instance, operation,
                 fmt::format("requests {} saved tensors; the limit is {}", requirements.saved_count, FVLM_MAX_SAVED));
  for (uint32_t index = 0; index < requirements.saved_count; ++index) {
    const auto& spec = requirements.saved[index];
    if (spec.ndim < 0 || spec.ndim > FVLM_MAX_DIMS)
      throw defect(instance, operation, fmt::format("saved tensor {} has {} dimensions", index, spec.ndim));
    try {
      scalar_type(spec.dtype);
    } catch (const Error& error) {
      throw defect(instance, operation, fmt::format("saved tensor {}: {}", index, error.what()));
    }
    uint64_t bytes = (spec.dtype.bits + 7) / 8;
    for (int32_t axis = 0; axis < spec.ndim; ++axis) {
      const int64_t size = spec.shape[axis];
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) || bytes > max_bytes)
        throw defect(instance, operation,
                     fmt::format("saved tensor {} has the shape [{}]", index,
                                 fmt::join(spec.shape, spec.shape + spec.ndim, ", ")));
    }
  }
}

void refuse_missing(const Instance& instance, std::string_view operation) {
  throw defect(instance, operation, "claimed to be supported, but the table has no function for it");
}

} // namespace detail
} // namespace fvlm::ops
