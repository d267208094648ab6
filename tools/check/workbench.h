// Runs the calls of a trial on tensors in guarded memory. What the plugin writes outside of its outputs, to inputs, or
// in a call that it refuses is recorded as a violation in the Run.
#pragma once
#include "check/context.h"
#include "check/graph_capture.h"
#include "check/operand.h"
#include "check/pages.h"

#include <algorithm>
#include <deque>

namespace fvlm::check {

// Whether the ABI's header allows gaps between a tensor's rows.
enum class Rows { free, contiguous };

class Workbench {
 public:
  Workbench(Context& context, const Variation& variation);

  Operand& input(std::string name, const at::Tensor& content, Rows rows = Rows::free);
  // An input whose order matters (cu_seqlens): `reordered` is its content in a reordered prior call.
  Operand& input(std::string name, const at::Tensor& content, Rows rows, const at::Tensor& reordered);
  Operand& output(std::string name, at::IntArrayRef shape, at::ScalarType dtype, Rows rows = Rows::free);
  // An output with content before the call: an accumulated gradient, a state, a parameter.
  Operand& updated(std::string name, const at::Tensor& content, Rows rows = Rows::contiguous);
  // `name` lies in the memory of `other`.
  Operand& alias(std::string name, Operand& other);
  // An output that lies in the memory of `other` where the variation aliases and there is one.
  Operand& output_over(Operand* other, std::string name, at::IntArrayRef shape, at::ScalarType dtype);
  // The saved tensors that requirements() requested.
  std::vector<Operand*> saved(const std::string& name);

  // Calls requirements(), and prepare() if the table has one. False if the run ends here.
  template <class Table, class Query>
  bool begin(const Table& table, const Query& value) {
    query_ = guarded_copy(value, SizeFault::query);
    const OverwriteAfterCall overwrite{structs_};
    const Query* query = guarded_copy(value, SizeFault::query);
    get_requirements(
        [&](fvlm_requirements* out, fvlm_error* error) { return table.requirements(instance_, query, out, error); });
    if (variation_.ask_again && can_continue()) {
      fvlm_requirements again{};
      again.struct_size = sizeof again;
      variation_.ask_again([&] { (void)table.requirements(instance_, query, &again, nullptr); });
      return false;
    }
    if (!can_continue() || !table.prepare || variation_.ignore_refusal) return can_continue();
    const int repeat = std::exchange(variation_.repeat, 0);
    const bool captured = std::exchange(variation_.captured, false);
    const std::function<void()> between = std::exchange(variation_.between, {});
    call("prepare", std::max({required_.forward_workspace, required_.backward_workspace, required_.prepare_workspace}),
         [&](const fvlm_call* call) { return table.prepare(instance_, call, query); });
    variation_.repeat = repeat;
    variation_.captured = captured;
    variation_.between = between;
    return can_continue();
  }
  const fvlm_requirements& required() const { return required_; }

  // Calls a function of the usual form with a copy of these arguments.
  template <class Query, class Arguments>
  bool call(std::string name, uint64_t workspace,
            fvlm_status (*function)(fvlm_instance*, const fvlm_call*, const Query*, const Arguments*),
            const Arguments& value) {
    const OverwriteAfterCall overwrite{structs_};
    const Query* query = guarded_copy(*static_cast<const Query*>(query_), SizeFault::query);
    const Arguments* guarded = guarded_copy(value, SizeFault::arguments);
    return call(std::move(name), workspace,
                [&](const fvlm_call* call) { return function(instance_, call, query, guarded); });
  }

  // Calls the plugin; true where it returned FVLM_OK. Of all the memory only those operands may change that output(),
  // updated(), alias() and saved() made since the last call.
  bool call(std::string name, uint64_t workspace, const std::function<fvlm_status(const fvlm_call*)>& function);
  // The next call may write to this operand, too.
  void let_write(Operand& operand) { writes_of_next_call_.push_back(&operand); }

  // Guarded copies of structs, for kinds whose functions have another signature.
  template <class Query>
  const Query* guarded_query(const Query& value) {
    return guarded_copy(value, SizeFault::query);
  }
  template <class Arguments>
  const Arguments* guarded_arguments(const Arguments& value) {
    return guarded_copy(value, SizeFault::arguments);
  }

  // Copies of the written operands, statuses and violations.
  Run finish();

  const Variation& variation() const { return variation_; }
  fvlm_instance* instance() const { return instance_; }
  // Further calls go to this one.
  void change_instance(fvlm_instance* instance) { instance_ = instance; }
  // No call failed so far, or the variation ignores failures.
  bool can_continue() const {
    return run_.done() || variation_.ignore_refusal || variation_.size_fault != SizeFault::none;
  }

 private:
  // A copy of a struct in pages of its own, followed by guard bytes, with the variation's struct_size. It lives as long
  // as the workbench.
  template <class Struct>
  Struct* guarded_copy(const Struct& value, SizeFault who) {
    const Pages& pages = structs_.emplace_back(sizeof(Struct) + 64);
    std::fill_n(pages.data(), pages.size(), static_cast<char>(0xEE));
    auto* copy = reinterpret_cast<Struct*>(pages.data());
    *copy = value;
    copy->struct_size = size_of_struct(sizeof(Struct), who);
    return copy;
  }
  // Overwrites the guarded copies that were made during its lifetime: a plugin may not keep pointers to them.
  struct OverwriteAfterCall {
    std::deque<Pages>& structs;
    size_t first = structs.size();
    ~OverwriteAfterCall() {
      for (size_t i = first; i < structs.size(); ++i)
        std::fill_n(structs[i].data(), structs[i].size(), static_cast<char>(0xEE));
    }
  };
  // Of a function that must not throw.
  fvlm_status status_of(const std::string& name, const std::function<fvlm_status()>& function);
  void get_requirements(const std::function<fvlm_status(fvlm_requirements*, fvlm_error*)>& function);
  // All memory of the call that it may not write, if it may write these operands.
  std::vector<WriteProtection::Range> protected_ranges_except(const std::vector<Operand*>& writes);
  uint32_t size_of_struct(size_t true_size, SizeFault who) const;
  Operand& place(std::string name, at::IntArrayRef shape, at::ScalarType dtype, Rows rows);
  Operand& place_workspace(const std::string& name, uint64_t bytes);
  void poison(Operand& operand);
  std::vector<char> empty_sink() const;
  // Checks that a call wrote a terminated string within the sink's capacity, and terminates it there.
  void check_sink(const std::string& call, std::vector<char>& text);
  // Captures what once() enqueues and replays it twice. Returns "" or what is wrong with the graph.
  std::string capture_and_replay(fvlm_call& given, const std::function<bool()>& once,
                                 const std::vector<Operand*>& writes, const std::vector<at::Tensor>& before);
  // Runs the variation's prior call on changed inputs, then restores the memory of all operands.
  void run_prior_call(const std::function<bool()>& once, const std::vector<Operand*>& writes,
                      const std::vector<at::Tensor>& before);
  // After each piece of a parallel_for, records which bytes of these operands it changed, to detect races.
  void track_piece_writes(const std::string& call, const std::vector<Operand*>& writes);
  // Repeats the call, and adds its shortest times to the run.
  void time(const std::string& call, const std::function<bool()>& once);
  void time(Timing& timing, const std::function<bool()>& once) const;
  void check_writes(const std::string& call, int32_t status, const std::vector<Operand*>& writes,
                    const std::vector<at::Tensor>& before);

  Context& context_;
  Variation variation_;
  TestHost& host_;
  fvlm_instance* instance_;
  std::optional<Stream> stream_; // passed to a plugin on a device; ATen works on another, so both are synchronized
  fvlm_requirements required_{};
  const void* query_ = nullptr;
  int64_t resident_base_ = 0, resident_after_ = 0; // unguarded: before the first call, after the last one
  Run run_;
  std::deque<Operand> operands_;
  std::vector<Operand*> writes_of_next_call_;
  std::vector<std::pair<std::string, Operand*>> written_, aliases_;
  std::deque<Pages> structs_;
};

// The descriptor of an operand, NULL for none.
inline fvlm_tensor* abi_of(Operand* operand) {
  return operand ? operand->abi() : nullptr;
}

} // namespace fvlm::check
