// Which plugin does the work: asks the candidates, chooses, and says why and why not.
#pragma once
#include "plugin/registry.h"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

// What a recipe asks for: names in order of preference; "auto" stands for the best of all that are left. A name may
// leave out the kind's label or name the variant: "cudnn" means attention-cudnn, "reference" any builtin of that name.
struct Wish {
  std::vector<std::string> names; // empty: auto
  bool measure = false;           // auto: the fastest instead of the best score, where a measure is given
};

struct Considered {
  std::string plugin;
  bool fits = false;
  int32_t score = 0;
  std::string reason; // of a refusal; or what it will use
  std::optional<double> seconds;
};

struct SelectionReport {
  std::string subject; // "attention", "kernels rmsnorm", "optimizer adamw"
  std::string chosen;  // the plugin's name
  int32_t score = 0;
  std::vector<Considered> considered; // in the order they were asked

  // "attention: attention-cpu (score 100); refused: attention-cudnn: needs a CUDA device"
  std::string text() const;
  // The measured times, one line a candidate; empty where nothing was measured.
  std::string table() const;
};

template <class Table>
struct Choice {
  const LoadedPlugin* plugin;
  const Table* table;
  SelectionReport report;
};

// One that may be chosen, whatever its kind.
struct Contender {
  std::string name;
  std::string refusal; // not empty: known unfit without asking (its manifest says so)
  std::function<const LoadedPlugin*(std::string* reason)> load;
  std::function<Considered(const LoadedPlugin&)> ask;
  std::function<double(const LoadedPlugin&)> measure; // seconds; may throw Error. Empty: not measured
};

// The index of the chosen one. Throws Error(plugin) that lists every refusal.
size_t choose(const Wish& wish, std::string_view label, std::string_view variant, std::span<const Contender> contenders,
              SelectionReport& report);

// Calls supports() and believes only what can be believed: exceptions, absurd scores, unterminated reasons and writes
// past the struct are refusals.
Considered ask_support(const LoadedPlugin& plugin, const std::function<void(fvlm_support*)>& supports);

std::string refuse_by_manifest(const Manifest& manifest, int32_t device);

// Chooses for one query and logs the report. `measure` runs a candidate on the caller's own shapes and returns seconds.
template <class Table>
Choice<Table> select(Registry& registry, const Wish& wish, const typename KindOf<Table>::Query& query,
                     std::string_view variant = {}, const std::function<double(const Candidate<Table>&)>& measure = {});

// "Fused kernel backends available: kernels-cpu (rmsnorm, swiglu)", for the log of a run.
std::string fused_backends_line(Registry& registry);

} // namespace fvlm
