// One row of a conformance table: a name, the promise that it tests, and the function that tests it.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fvlm::check {

enum class State { ok, failed, not_applicable };

struct Outcome {
  State state = State::ok;
  std::string text; // failed, not_applicable: why, with numbers; ok: the measured numbers
};

Outcome ok(std::string text = "");
Outcome not_applicable(std::string why);
Outcome failed(std::string why);

template <class... Args>
requires(sizeof...(Args) > 0) Outcome failed(fmt::format_string<Args...> format, Args&&... args) {
  return failed(fmt::format(format, std::forward<Args>(args)...));
}

class Context;

// What `--quick` leaves out: rows of large sizes and of many runs.
enum class Extent { quick, thorough };

struct Check {
  std::string name;   // "causal"; a report says "attention.causal"
  std::string proves; // one sentence, true of a plugin that passes
  Outcome (*run)(Context&);
  // Comma-separated rows of this table ("forward_*": all with this prefix) that must not have failed; else this row is
  // reported as not applicable.
  std::string needs = "";
  Extent extent = Extent::quick; // thorough: not a row of `--quick`
};

// A measurement of `--bench`.
struct Measurement {
  std::string name, unit;
  double plugin = 0, reference = 0; // reference 0: there is none
  // Of a time: the CPU's on one thread, which other work on the machine does not stretch. 0: not measured.
  double plugin_cpu = 0, reference_cpu = 0;
};

struct Benchmark {
  std::string name;
  std::string measures;
  std::function<std::vector<Measurement>(Context&)> run; // empty: the plugin does not do this shape
};

// The checks of one family of kinds ("attention"). The table `library` has no family: it applies to every plugin.
struct Table {
  const char* family;
  std::vector<Check> checks;
  std::vector<Benchmark> benchmarks;
};

// Every table, in the order in which they run; the library's own first.
std::span<const Table> tables();
const Table& table_of(std::string_view family);

// "fvlm.optimizer/1:adamw" -> "optimizer", and the name by which a report calls it: "optimizer:adamw".
std::string family_of(std::string_view kind);
std::string short_kind(std::string_view kind);

} // namespace fvlm::check
