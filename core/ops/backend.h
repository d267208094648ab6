// Calling a selected plugin. Backend is the plugin's table with an instance of it on one device; Prepared is a problem
// (a query: shapes, types, options) that it was prepared for. The headers of the kinds (attention.h, kernels.h, loss.h,
// optimizer.h, quantizer.h, packer.h) wrap both with functions on at::Tensor:
//
//   Backend<fvlm_attention_v1> backend(choice, device);
//   Attention attention(backend, query);                       // supports(), requirements(), prepare()
//   auto [out, saved] = attention.forward(q, k, v, packing);   // allocates outputs, saved tensors and workspace
//
// Failures are an Error that names the plugin, the operation and the shapes. Results go to new tensors, or to `into`
// where the caller gives one. Nothing is recorded for autograd.
#pragma once
#include "ops/call_observer.h"
#include "ops/dry_run.h"
#include "ops/tensor_bridge.h"
#include "plugin/guard.h"
#include "plugin/kinds.h"

#include <fvlm/fvlm.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace fvlm::ops {

// The part of fvlm_call that is the same for all calls of a step. Random state is counter-based: see fvlm_call.
struct CallState {
  uint32_t flags = 0; // FVLM_DETERMINISTIC; FVLM_CAPTURING is added during CUDA graph capture
  uint64_t random_seed = 0, random_offset = 0;
  const uint64_t* random_offset_device = nullptr;
};

// The part of a Backend that is the same for every kind: the plugin's instance, and one workspace for each stream,
// which all calls on that stream share.
class Instance {
 public:
  Instance(std::string plugin, std::string_view kind, const fvlm_table& table, const fvlm_host* host,
           at::Device device);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Grows the workspace of the current stream, so that calls need not allocate. [setup]
  void reserve(uint64_t bytes);
  // Memory for one call of prepare(). Undefined where there is none. [setup]
  at::Tensor temporary_workspace(uint64_t bytes) const;
  static void use(fvlm_call& call, const at::Tensor& workspace, uint64_t bytes);
  // The fvlm_call of the next call on the current stream.
  fvlm_call call(uint64_t workspace_bytes);

  const std::string plugin;
  const std::string kind; // "attention", "kernels": for messages
  const at::Device device;
  CallState state;

  fvlm_instance* get() const { return instance_; }
  // The plugin `reference`, the one that is called in a dry run.
  bool computes_with_aten() const { return plugin == "reference"; }

 private:
  const fvlm_table& table_;
  const fvlm_host* host_;
  fvlm_instance* instance_ = nullptr;
  struct Workspace {
    at::Tensor memory;
    bool is_captured = false; // a captured graph uses it
  };
  std::map<void*, Workspace> workspaces_; // by stream
  std::vector<at::Tensor> outgrown_;      // kept alive for captured graphs
};

// A table and its instance. Copies share it.
template <class Table>
class Backend {
 public:
  using Query = typename KindOf<Table>::Query;

  Backend(std::string plugin, const Table& table, const fvlm_host* host, at::Device device)
      : table_(&table), instance_(std::make_shared<Instance>(
                            std::move(plugin), find_family(KindOf<Table>::family)->label, table.base, host, device)) {}
  // From select() or Registry::candidates().
  template <class Chosen>
  Backend(const Chosen& chosen, at::Device device)
      : Backend(chosen.plugin->name(), *chosen.table, chosen.plugin->host, device) {}

  const Table& table() const { return *table_; }
  Instance& instance() const { return *instance_; }
  const std::string& plugin() const { return instance_->plugin; }
  at::Device device() const { return instance_->device; }
  CallState& state() const { return instance_->state; }

 private:
  const Table* table_;
  std::shared_ptr<Instance> instance_;
};

// The argument struct of one call, with the fvlm_tensors that it points to.
template <class Arguments>
class BoundArguments : public Arguments {
 public:
  BoundArguments() : Arguments{} { this->struct_size = sizeof(Arguments); }
  BoundArguments(const BoundArguments&) = delete;
  BoundArguments& operator=(const BoundArguments&) = delete;

  // NULL for an undefined tensor. At most 16 tensors, besides the plugin's saved ones.
  fvlm_tensor* bind(const at::Tensor& tensor) { return (tensors_.at(count_++) = AbiTensor(tensor)).get(); }

  template <class Slot>
  void bind(Slot (&slots)[FVLM_MAX_SAVED], const std::vector<at::Tensor>& tensors) {
    for (size_t index = 0; index < tensors.size(); ++index) slots[index] = bind(tensors[index]);
  }

  double bytes() const {
    double sum = 0;
    for (const AbiTensor& tensor : tensors_) sum += tensor.bytes();
    return sum;
  }

 private:
  std::array<AbiTensor, 16 + FVLM_MAX_SAVED> tensors_;
  size_t count_ = 0;
};

// `into` where it is defined, else a new contiguous tensor on the device.
at::Tensor output_or_new(const at::Tensor& into, at::IntArrayRef shape, at::ScalarType type, at::Device device);

namespace detail {

// The calls of setup, and plausibility checks of what they return. All throw Error(plugin).
void call_setup(const Instance& instance, std::string_view operation, std::string_view function,
                const std::function<fvlm_status(fvlm_error*)>& call);
void require_support(const Instance& instance, std::string_view operation, const fvlm_support& support);
void require_sane(const Instance& instance, std::string_view operation, const fvlm_requirements& requirements);
[[noreturn]] void refuse_missing(const Instance& instance, std::string_view operation);

} // namespace detail

// A problem that a backend supports and was prepared for. Base class of the kinds' wrappers.
template <class Table>
class Prepared {
 public:
  using Query = typename Backend<Table>::Query;

  const Backend<Table>& backend() const { return backend_; }
  const Query& query() const { return query_; }
  const fvlm_requirements& requirements() const { return requirements_; }

 protected:
  // Sets struct_size and device of the query.
  Prepared(Backend<Table> backend, const Query& query) : backend_(std::move(backend)), query_(query) {
    query_.struct_size = sizeof query_;
    query_.device = abi_device(backend_.device());
    const Table& table = backend_.table();
    Instance& instance = backend_.instance();
    fvlm_support support{sizeof support, 0, {}};
    call_setup("supports", [&](fvlm_error*) { return table.supports(&query_, &support), FVLM_OK; });
    detail::require_support(instance, subject(), support);
    call_setup("requirements",
               [&](fvlm_error* error) { return table.requirements(instance.get(), &query_, &requirements_, error); });
    detail::require_sane(instance, subject(), requirements_);
    if (instance.state.flags & FVLM_DETERMINISTIC)
      requirements_.backward_workspace =
          std::max(requirements_.backward_workspace, requirements_.deterministic_workspace);
    const uint64_t of_calls = std::max(requirements_.forward_workspace, requirements_.backward_workspace);
    instance.reserve(of_calls);
    if (!table.prepare || is_dry_run(backend_.device())) return;
    const at::Tensor temporary = requirements_.prepare_workspace > of_calls
                                     ? instance.temporary_workspace(requirements_.prepare_workspace)
                                     : at::Tensor();
    call_setup("prepare", [&](fvlm_error* error) {
      fvlm_call call = instance.call(of_calls);
      if (temporary.defined()) Instance::use(call, temporary, requirements_.prepare_workspace);
      call.error = error;
      return table.prepare(instance.get(), &call, &query_);
    });
  }

  // Allocates the tensors that forward saves for backward.
  std::vector<at::Tensor> make_saved() const {
    std::vector<at::Tensor> saved;
    for (uint32_t index = 0; index < requirements_.saved_count; ++index) {
      const auto& spec = requirements_.saved[index];
      saved.push_back(
          output_or_new({}, {spec.shape, static_cast<size_t>(spec.ndim)}, scalar_type(spec.dtype), backend_.device()));
    }
    return saved;
  }

  using Size = uint64_t fvlm_requirements::*;
  template <class Arguments>
  void run(std::string_view operation,
           fvlm_status (*function)(fvlm_instance*, const fvlm_call*, const Query*, const Arguments*),
           const BoundArguments<Arguments>& arguments, Size workspace = &fvlm_requirements::forward_workspace) const {
    Instance& instance = backend_.instance();
    if (!function) detail::refuse_missing(instance, operation);
    if (is_dry_run(instance.device) && !instance.computes_with_aten())
      return instance.reserve(requirements_.*workspace);
    const CallObserver* observer = nullptr;
    if constexpr (std::is_constructible_v<CalledQuery, Query>) observer = call_observer();
    if (observer) observer->begin();
    try {
      invoke(instance.plugin, operation, function, instance.get(), instance.call(requirements_.*workspace), query_,
             static_cast<const Arguments&>(arguments));
    } catch (UnsupportedCall& refused) {
      refused.prepared = this;
      throw;
    }
    if constexpr (std::is_constructible_v<CalledQuery, Query>)
      if (observer) observer->end(operation, query_, arguments.bytes());
  }

  at::Tensor output(const at::Tensor& into, at::IntArrayRef shape, at::ScalarType type) const {
    return output_or_new(into, shape, type, backend_.device());
  }

 private:
  std::string subject() const { return KindOf<Table>::subject(query_); }

  void call_setup(std::string_view function, const std::function<fvlm_status(fvlm_error*)>& call) const {
    detail::call_setup(backend_.instance(), subject(), function, call);
  }

  Backend<Table> backend_;
  Query query_;
  fvlm_requirements requirements_{.struct_size = sizeof(fvlm_requirements)};
};

} // namespace fvlm::ops
