// Selects the plugin for a query: asks the candidates whether they support it, picks one by preference, score or
// measured time, and reports why.
#pragma once
#include "plugin/active_call.h"
#include "plugin/registry.h"
#include "plugin/untrusted.h"

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// A recipe's preference among plugins: names in order; "auto" stands for the best of all remaining ones. The kind's
// label or the variant may be left out: "cudnn" is attention-cudnn for attention, "fused" is fused-adamw for optimizer
// adamw.
struct BackendPreference {
  std::vector<std::string> names; // empty: auto
  bool measure = false; // "auto" takes the fastest rather than the highest score, where the caller can measure
  std::map<std::string, std::string> without = {}; // excluded plugins, with the reason

  // From a recipe's list, in which "measure" is an "auto" that measures.
  static BackendPreference of(std::vector<std::string> words);
};

// A candidate and its answer.
struct CandidateAnswer {
  std::string plugin;
  bool fits = false;
  int32_t score = 0;
  std::string reason; // why it does not fit, or what it will use
  std::optional<double> seconds;
  bool cached = false;  // whether `seconds` is from the cache
  bool by_name = false; // preferred by name, not by "auto"
};

struct SelectionReport {
  std::string subject;                     // "attention", "kernels rmsnorm", "optimizer adamw"
  std::string shape;                       // the query's sizes, for kinds that describe them
  std::string chosen;                      // the plugin's name
  std::vector<CandidateAnswer> considered; // in the order in which they were asked

  // "attention: attention-cpu (score 100); refused: attention-cudnn: needs a CUDA device"
  std::string text() const;
  // What the selected plugin says it will use; may be empty.
  std::string reason() const;
  // The measured times as a table; empty where nothing was measured.
  std::string times() const;
};

template <class Table>
struct Choice {
  const LoadedPlugin* plugin;
  const Table* table;
  SelectionReport report;
};

// The time of a candidate.
struct Measurement {
  double seconds;
  bool cached = false; // from the cache
};

// The query of a selection with its type erased: how to ask a plugin whether it supports it, and how to time it.
struct SelectionQuery {
  KindName kind;
  std::string subject, shape;
  std::string_view label;
  int32_t device;
  std::function<SupportAnswer(const LoadedPlugin&)> ask;
  std::function<Measurement(const LoadedPlugin&)> measure; // empty: nothing is measured
};

// Selects, and logs the reasons at debug level. Throws Error(plugin) with every refusal where no plugin fits.
const LoadedPlugin* choose(Registry& registry, const BackendPreference& preference, const SelectionQuery& questions,
                           SelectionReport& report);

// The answer of every plugin that the preference allows, without selecting one.
std::vector<CandidateAnswer> answers(Registry& registry, const BackendPreference& preference,
                                     const SelectionQuery& questions);

// The query has to outlive the result.
template <class Table>
SelectionQuery selection_query(const typename KindOf<Table>::Query& query, const std::string& variant = {}) {
  SelectionQuery questions;
  questions.kind = {std::string(KindOf<Table>::family), variant};
  questions.subject = KindOf<Table>::subject(query) + (variant.empty() ? "" : " " + variant);
  if constexpr (requires { KindOf<Table>::shape(query); }) questions.shape = KindOf<Table>::shape(query);
  questions.label = find_family(KindOf<Table>::family)->label;
  questions.device = KindOf<Table>::device(query);
  questions.ask = [&query, kind = questions.kind](const LoadedPlugin& plugin) {
    const auto* table = plugin.template table<Table>(kind.variant);
    if (!table) return SupportAnswer{0, "does not implement it", {}}; // optional functions of the kind
    if constexpr (requires { KindOf<Table>::unknown_field(*table, query); })
      if (std::string field = KindOf<Table>::unknown_field(*table, query); !field.empty())
        return SupportAnswer{0, "does not know " + field, {}};
    auto answer = ask_supports([&](fvlm_support* support) {
      const ActiveCall mark(plugin.name(), "supports");
      table->supports(&query, support);
    });
    if constexpr (requires { query.op; })
      if (answer.score > 0 && !plugin.find(kind)->has(operation_name(query.op)))
        answer.defect = "supports() accepts " + operation_name(query.op) + ", which it does not implement";
    return answer;
  };
  return questions;
}

// Selects a plugin for a query. `measure` times a candidate on the query; it may throw Error.
template <class Table>
Choice<Table> select(Registry& registry, const BackendPreference& preference,
                     const typename KindOf<Table>::Query& query, const std::string& variant = {},
                     const std::function<Measurement(const Candidate<Table>&)>& measure = {}) {
  SelectionQuery questions = selection_query<Table>(query, variant);
  if (measure)
    questions.measure = [&](const LoadedPlugin& plugin) {
      return measure({&plugin, plugin.template table<Table>(variant)});
    };
  Choice<Table> choice{};
  choice.plugin = choose(registry, preference, questions, choice.report);
  choice.table = choice.plugin->template table<Table>(variant);
  return choice;
}

// The plugins, other than built-in ones, of the kind kernels, with their operations: {"kernels-cpu", {"rmsnorm",
// "swiglu"}}. Opens the libraries.
std::vector<std::pair<std::string, std::vector<std::string>>> fused_backends(Registry& registry);
// "Fused kernel backends available: kernels-cpu (rmsnorm, swiglu)"
std::string fused_backends_line(Registry& registry);

} // namespace fvlm
