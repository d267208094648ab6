// One row of a conformance table: a name, what it proves, and the function that finds out.
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
  std::string text; // why it failed or does not apply, with numbers; of an ok, what was measured
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
  // Rows of this table, "forward_*" for all that begin so: where one of them failed, this one says nothing.
  std::string needs = "";
  Extent extent = Extent::quick; // thorough: not a row of `--quick`
};

// A measurement of `--bench`.
struct Figure {
  std::string name, unit;
  double plugin = 0, reference = 0; // reference 0: there is none
  // Of a time: the CPU's on one thread, which other work on the machine does not stretch. 0: not measured.
  double plugin_cpu = 0, reference_cpu = 0;
};

struct Benchmark {
  std::string name;
  std::string measures;
  std::function<std::vector<Figure>(Context&)> run; // empty: the plugin does not do this shape
};

// What is checked of one family of kinds ("attention"). `library` has no family: it concerns every plugin.
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
