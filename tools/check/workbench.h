// Runs the calls of a trial on tensors in guarded memory. What the plugin writes outside of its outputs, to inputs, or
// in a call that it refuses is recorded as a violation in the Run.
#pragma once
#include "check/context.h"
#include "check/operand.h"
#include "check/pages.h"
#include "check/recorder.h"

#include <algorithm>
#include <deque>

namespace fvlm::check {

// Whether the header lets a tensor's rows lie apart from each other.
enum class Rows { free, contiguous };

class Workbench {
 public:
  Workbench(Context& context, const Variation& variation);

  Operand& input(std::string name, const at::Tensor& content, Rows rows = Rows::free);
  // One whose numbers mean something in their order: what it holds at a rehearsal, in place of the same backwards.
  Operand& input(std::string name, const at::Tensor& content, Rows rows, const at::Tensor& reordered);
  Operand& output(std::string name, at::IntArrayRef shape, at::ScalarType dtype, Rows rows = Rows::free);
  // An output that holds something before the call: what is added to, a state, a parameter.
  Operand& updated(std::string name, const at::Tensor& content);
  // `name` lies in the memory of `other`.
  Operand& alias(std::string name, Operand& other);
  // The tensors that requirements() asks for.
  std::vector<Operand*> saved(const std::string& name);

  // Asks requirements() and calls prepare(), where the table has one. False where the run ends here.
  template <class Table, class Query>
  bool begin(const Table& table, const Query& value) {
    query_ = lend(value, Spoil::query);
    const ForOneCall asking{structs_};
    const Query* query = lend(value, Spoil::query);
    require(
        [&](fvlm_requirements* out, fvlm_error* error) { return table.requirements(instance_, query, out, error); });
    if (!going() || !table.prepare || variation_.despite_refusal) return going();
    const int repeat = std::exchange(variation_.repeat, 0);
    const bool recorded = std::exchange(variation_.recorded, false);
    const std::function<void()> between = std::exchange(variation_.between, {});
    call("prepare", std::max(required_.forward_workspace, required_.backward_workspace), {},
         [&](const fvlm_call* call) { return table.prepare(instance_, call, query); });
    variation_.repeat = repeat;
    variation_.recorded = recorded;
    variation_.between = between;
    return going();
  }
  const fvlm_requirements& required() const { return required_; }

  // Calls a function of the usual form with a copy of these arguments.
  template <class Query, class Arguments>
  bool call(std::string name, uint64_t workspace, std::vector<Operand*> writes,
            fvlm_status (*function)(fvlm_instance*, const fvlm_call*, const Query*, const Arguments*),
            const Arguments& value) {
    const ForOneCall calling{structs_};
    const Query* query = lend(*static_cast<const Query*>(query_), Spoil::query);
    const Arguments* lent = lend(value, Spoil::arguments);
    return call(std::move(name), workspace, std::move(writes),
                [&](const fvlm_call* call) { return function(instance_, call, query, lent); });
  }

  // Calls the plugin; true where it returned FVLM_OK. Of all the memory only the operands in `writes` may change.
  bool call(std::string name, uint64_t workspace, std::vector<Operand*> writes,
            const std::function<fvlm_status(const fvlm_call*)>& function);

  // Copies of structs with struct_size as the variation wants it, for kinds with functions of another form.
  template <class Query>
  const Query* lend_query(const Query& value) {
    return lend(value, Spoil::query);
  }
  template <class Arguments>
  const Arguments* lend_arguments(const Arguments& value) {
    return lend(value, Spoil::arguments);
  }

  // What the calls have written, and what happened in them.
  Run finish();

  fvlm_instance* instance() const { return instance_; }
  // Further calls go to this one.
  void change_instance(fvlm_instance* instance) { instance_ = instance; }
  // No call failed so far, or the variation calls on all the same.
  bool going() const { return run_.done() || variation_.despite_refusal || variation_.spoil != Spoil::none; }

 private:
  // A copy of a struct with its struct_size as the variation wants it; lives as long as the workbench.
  template <class Struct>
  Struct* lend(const Struct& value, Spoil who) {
    const Pages& pages = structs_.emplace_back(sizeof(Struct) + 64);
    std::fill_n(pages.data(), pages.size(), static_cast<char>(0xEE));
    auto* copy = reinterpret_cast<Struct*>(pages.data());
    *copy = value;
    copy->struct_size = size_of_struct(sizeof(Struct), who);
    return copy;
  }
  // What was lent while this lives holds nonsense behind it: a plugin may keep no pointer to it.
  struct ForOneCall {
    std::deque<Pages>& structs;
    size_t first = structs.size();
    ~ForOneCall() {
      for (size_t i = first; i < structs.size(); ++i)
        std::fill_n(structs[i].data(), structs[i].size(), static_cast<char>(0xEE));
    }
  };
  void require(const std::function<fvlm_status(fvlm_requirements*, fvlm_error*)>& ask);
  // What a call that may write to these alone has to leave alone.
  std::vector<Sealed::Range> sealed_but(const std::vector<Operand*>& writes);
  uint32_t size_of_struct(size_t true_size, Spoil who) const;
  Operand& place(std::string name, at::IntArrayRef shape, at::ScalarType dtype, Rows rows);
  Operand& place_workspace(const std::string& name, uint64_t bytes);
  void poison(Operand& operand);
  std::vector<char> empty_sink() const;
  // Whether what a call wrote into a sink lies within its capacity and ends; cuts it off there.
  void look_at_sink(const std::string& call, std::vector<char>& text);
  // Records what once() enqueues and replays it. "" or what is wrong with the graph.
  std::string record(fvlm_call& given, const std::function<bool()>& once, const std::vector<Operand*>& writes,
                     const std::vector<at::Tensor>& before);
  // What a call before left at these addresses: its inputs hold other numbers, of its outputs nothing remains.
  void rehearse(const std::function<bool()>& once, const std::vector<Operand*>& writes,
                const std::vector<at::Tensor>& before);
  // Notes, at the ends of pieces, which bytes of these each of them has changed.
  void watch_pieces(const std::string& call, const std::vector<Operand*>& writes);
  // Repeats the call, and adds its fastest times to the run.
  void time(const std::string& call, const std::function<bool()>& once);
  void time(Timing& timing, const std::function<bool()>& once) const;
  void look_around(const std::string& call, int32_t status, const std::vector<Operand*>& writes,
                   const std::vector<at::Tensor>& before);

  Context& context_;
  Variation variation_;
  TestHost& host_;
  fvlm_instance* instance_;
  std::optional<Stream> stream_; // lent to a plugin on a device; ATen's work is on another, so each waits for the other
  fvlm_requirements required_{};
  const void* query_ = nullptr;
  int64_t resident_base_ = 0, resident_after_ = 0; // bare: before the first call, after the last one
  Run run_;
  std::deque<Operand> operands_;
  std::vector<std::pair<std::string, Operand*>> written_, aliases_;
  std::deque<Pages> structs_;
};

// Those that are not missing.
std::vector<Operand*> present(std::initializer_list<Operand*> operands);
// What an argument struct holds for an operand that may be missing.
inline fvlm_tensor* abi_of(Operand* operand) {
  return operand ? operand->abi() : nullptr;
}

} // namespace fvlm::check
