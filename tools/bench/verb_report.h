// What every benchmark ends with: a measurement behind a progress line, and its report.
#pragma once
#include "bench/progress.h"
#include "cli/options.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"

#include <fmt/format.h>

#include <utility>

namespace fvlm::cli {

// The report of `measure`, which is given a bench::Progress.
template <class Measure>
auto with_progress(const Measure& measure) {
  Progress progress("measuring");
  auto report = measure(bench::Progress([&](const auto&... step) { progress.steps(step...); }));
  progress.finish();
  return report;
}

// Prints a report for people, or with --json as one document that begins with the entries of `document`.
template <class Report, class Print>
int show(const ParsedOptions& parsed, Json document, const Report& report, const Print& print) {
  if (parsed.flag("json")) {
    document.update(report.json());
    fmt::print("{}", dump(document));
  } else {
    print(report);
  }
  return 0;
}

} // namespace fvlm::cli
