// A chosen table at work: Backend is its instance on one device, Prepared a shape class it was made ready for. The
// kinds' own headers (attention.h, kernels.h, loss.h, optimizer.h, quantizer.h, packer.h) put at::Tensors around them:
//
//   Backend<fvlm_attention_v1> backend(choice, device);
//   Attention attention(backend, query);                       // supports(), requirements(), prepare()
//   auto [out, saved] = attention.forward(q, k, v, packed);    // outputs, saved tensors and workspace are allocated
//
// What goes wrong is an Error that names the plugin, the operation and the shapes. Results go to new tensors or, where
// a call is given `into`, to the caller's. Nothing is recorded for autograd.
#pragma once
#include "ops/call_watch.h"
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

// What a step wants of its calls besides the tensors. Random state is counter-based: see fvlm_call.
struct CallState {
  uint32_t flags = 0; // FVLM_DETERMINISTIC; a call adds FVLM_CAPTURING where it is recorded
  uint64_t random_seed = 0, random_offset = 0;
  const uint64_t* random_offset_device = nullptr;
};

// The part of a Backend that knows no kind: one instance, and for each stream the workspace that its calls share, one
// after the other.
class Instance {
 public:
  Instance(std::string plugin, std::string_view kind, const fvlm_table& table, const fvlm_host* host,
           at::Device device);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Grows the workspace of ATen's current stream, so that calls allocate none. [setup]
  void reserve(uint64_t bytes);
  // The circumstances of the next call, on that stream.
  fvlm_call call(uint64_t workspace_bytes);

  const std::string plugin;
  const std::string kind; // "attention", "kernels": for messages
  const at::Device device;
  CallState state;

  fvlm_instance* get() const { return instance_; }

 private:
  const fvlm_table& table_;
  const fvlm_host* host_;
  fvlm_instance* instance_ = nullptr;
  std::map<void*, at::Tensor> workspaces_; // by stream
  std::vector<at::Tensor> outgrown_;       // recorded work goes on using those of its time
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

// The argument struct of one call, and the tensors it points to.
template <class Arguments>
class Bound : public Arguments {
 public:
  Bound() : Arguments{} { this->struct_size = sizeof(Arguments); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  // NULL for an undefined tensor. A struct holds at most 16 besides those that a plugin saves.
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

// `into` where the caller gave it, else a new contiguous tensor on the device.
at::Tensor given_or_new(const at::Tensor& into, at::IntArrayRef shape, at::ScalarType type, at::Device device);

namespace detail {

// What setup asks of a plugin, and what is believed of its answers. Throw Error(plugin).
void ask(const Instance& instance, std::string_view operation, std::string_view what,
         const std::function<fvlm_status(fvlm_error*)>& question);
void require_support(const Instance& instance, std::string_view operation, const fvlm_support& support);
void require_sane(const Instance& instance, std::string_view operation, const fvlm_requirements& requirements);
[[noreturn]] void refuse_missing(const Instance& instance, std::string_view operation);

} // namespace detail

// A shape class that a backend supports and was prepared for. What the kinds' classes are made of.
template <class Table>
class Prepared {
 public:
  using Query = typename Backend<Table>::Query;

  const Backend<Table>& backend() const { return backend_; }
  const Query& query() const { return query_; }
  const fvlm_requirements& requirements() const { return requirements_; }

 protected:
  // struct_size and device of the query are filled in here.
  Prepared(Backend<Table> backend, const Query& query) : backend_(std::move(backend)), query_(query) {
    query_.struct_size = sizeof query_;
    query_.device = abi_device(backend_.device());
    const Table& table = backend_.table();
    Instance& instance = backend_.instance();
    fvlm_support support{sizeof support, 0, {}};
    ask("supports", [&](fvlm_error*) { return table.supports(&query_, &support), FVLM_OK; });
    detail::require_support(instance, subject(), support);
    ask("requirements",
        [&](fvlm_error* error) { return table.requirements(instance.get(), &query_, &requirements_, error); });
    detail::require_sane(instance, subject(), requirements_);
    instance.reserve(std::max(requirements_.forward_workspace, requirements_.backward_workspace));
    if (!table.prepare) return;
    ask("prepare", [&](fvlm_error* error) {
      fvlm_call call = instance.call(std::max(requirements_.forward_workspace, requirements_.backward_workspace));
      call.error = error;
      return table.prepare(instance.get(), &call, &query_);
    });
  }

  // New tensors for what forward saves.
  std::vector<at::Tensor> make_saved() const {
    std::vector<at::Tensor> saved;
    for (uint32_t index = 0; index < requirements_.saved_count; ++index) {
      const auto& spec = requirements_.saved[index];
      saved.push_back(
          given_or_new({}, {spec.shape, static_cast<size_t>(spec.ndim)}, scalar_type(spec.dtype), backend_.device()));
    }
    return saved;
  }

  using Size = uint64_t fvlm_requirements::*;
  template <class Arguments>
  void run(std::string_view operation,
           fvlm_status (*function)(fvlm_instance*, const fvlm_call*, const Query*, const Arguments*),
           const Bound<Arguments>& arguments, Size workspace = &fvlm_requirements::forward_workspace) const {
    Instance& instance = backend_.instance();
    if (!function) detail::refuse_missing(instance, operation);
    const CallWatch* watch = nullptr;
    if constexpr (std::is_constructible_v<CalledQuery, Query>) watch = call_watch();
    if (watch) watch->begin();
    try {
      invoke(instance.plugin, operation, function, instance.get(), instance.call(requirements_.*workspace), query_,
             static_cast<const Arguments&>(arguments));
    } catch (UnsupportedCall& refused) {
      refused.prepared = this;
      throw;
    }
    if constexpr (std::is_constructible_v<CalledQuery, Query>)
      if (watch) watch->end(operation, query_, arguments.bytes());
  }

  at::Tensor output(const at::Tensor& into, at::IntArrayRef shape, at::ScalarType type) const {
    return given_or_new(into, shape, type, backend_.device());
  }

 private:
  std::string subject() const { return KindOf<Table>::subject(query_); }

  void ask(std::string_view what, const std::function<fvlm_status(fvlm_error*)>& question) const {
    detail::ask(backend_.instance(), subject(), what, question);
  }

  Backend<Table> backend_;
  Query query_;
  fvlm_requirements requirements_{.struct_size = sizeof(fvlm_requirements)};
};

} // namespace fvlm::ops
