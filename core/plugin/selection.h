// Which plugin does the work: asks the candidates, chooses, and says why and why not.
#pragma once
#include "plugin/call_mark.h"
#include "plugin/registry.h"
#include "plugin/untrusted.h"

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// What a recipe asks for: names in order of preference; "auto" stands for the best of all that are left. A name may
// leave out the kind's label or the variant: "cudnn" means attention-cudnn, for an optimizer "fused" optimizer-fused.
struct Wish {
  std::vector<std::string> names; // empty: auto
  bool measure = false;           // "auto" takes the fastest instead of the best score, where the caller can measure
  std::map<std::string, std::string> without = {}; // plugins that are not to be taken, and why

  // As a recipe writes it: "measure" is an "auto" that measures.
  static Wish of(std::vector<std::string> words);
};

struct Considered {
  std::string plugin;
  bool fits = false;
  int32_t score = 0;
  std::string reason; // why not; or what it will use
  std::optional<double> seconds;
  bool remembered = false; // those seconds, from an earlier measurement
  bool by_name = false;    // preferred by its name, not as one of all
};

struct SelectionReport {
  std::string subject;                // "attention", "kernels rmsnorm", "optimizer adamw"
  std::string shape;                  // the sizes that were asked for, where the kind can say them
  std::string chosen;                 // the plugin's name
  std::vector<Considered> considered; // in the order they were asked

  // "attention: attention-cpu (score 100); refused: attention-cudnn: needs a CUDA device"
  std::string text() const;
  // What the chosen one says it will use; empty: nothing.
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

// How long a candidate takes.
struct Measurement {
  double seconds;
  bool remembered = false;
};

// What selection does whatever the kind: how to ask one plugin, and how long it takes.
struct Questions {
  KindName kind;
  std::string subject, shape;
  std::string_view label;
  int32_t device;
  std::function<SupportAnswer(const LoadedPlugin&)> ask;
  std::function<Measurement(const LoadedPlugin&)> measure; // empty: nothing is measured
};

// Chooses, and logs why for who debugs. Throws Error(plugin) that lists every refusal.
const LoadedPlugin* choose(Registry& registry, const Wish& wish, const Questions& questions, SelectionReport& report);

// Every plugin's answer that the wish lets in, nobody being chosen.
std::vector<Considered> answers(Registry& registry, const Wish& wish, const Questions& questions);

// The query has to outlive them.
template <class Table>
Questions questions_about(const typename KindOf<Table>::Query& query, const std::string& variant = {}) {
  Questions questions;
  questions.kind = {std::string(KindOf<Table>::family), variant};
  questions.subject = KindOf<Table>::subject(query) + (variant.empty() ? "" : " " + variant);
  if constexpr (requires { KindOf<Table>::shape(query); }) questions.shape = KindOf<Table>::shape(query);
  questions.label = find_family(KindOf<Table>::family)->label;
  questions.device = KindOf<Table>::device(query);
  questions.ask = [&query, kind = questions.kind](const LoadedPlugin& plugin) {
    const auto* table = plugin.template table<Table>(kind.variant);
    auto answer = ask_supports([&](fvlm_support* support) {
      const CallMark mark(plugin.name(), "supports");
      table->supports(&query, support);
    });
    if constexpr (requires { query.op; })
      if (answer.score > 0 && !plugin.find(kind)->has(operation_name(query.op)))
        answer.defect = "supports() says yes to " + operation_name(query.op) + ", which it does not have";
    return answer;
  };
  return questions;
}

// Chooses for one query. `measure` runs a candidate on the caller's own shapes; it may throw Error.
template <class Table>
Choice<Table> select(Registry& registry, const Wish& wish, const typename KindOf<Table>::Query& query,
                     const std::string& variant = {},
                     const std::function<Measurement(const Candidate<Table>&)>& measure = {}) {
  Questions questions = questions_about<Table>(query, variant);
  if (measure)
    questions.measure = [&](const LoadedPlugin& plugin) {
      return measure({&plugin, plugin.template table<Table>(variant)});
    };
  Choice<Table> choice{};
  choice.plugin = choose(registry, wish, questions, choice.report);
  choice.table = choice.plugin->template table<Table>(variant);
  return choice;
}

// Which plugins other than the engine's own give small operations, and which: {"kernels-cpu", {"rmsnorm", "swiglu"}}.
// Opens those libraries.
std::vector<std::pair<std::string, std::vector<std::string>>> fused_backends(Registry& registry);
// "Fused kernel backends available: kernels-cpu (rmsnorm, swiglu)"
std::string fused_backends_line(Registry& registry);

} // namespace fvlm
