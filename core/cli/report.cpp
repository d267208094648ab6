// fvlm-engine report: the HTML report of a run, and its figures in short.
#include "base/terminal.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "report/page.h"
#include "report/run_summary.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm::cli {
namespace {

Json as_json(const report::Report& made) {
  Json document = {{"report", made.file.string()}, {"bytes", made.bytes}};
  document.update(report::summary_json(made.run, made.figures));
  document["missing"] = made.notes;
  return document;
}

} // namespace

int run_report(Arguments arguments) {
  Options options(
      "report RUN [--out FILE] [--json]",
      "Makes one HTML file of what lies in a run's folder: curves, results, where the time went, answers with\n"
      "where the model looked, the Plan. It needs no network. A run that still goes on has a report too.",
      "report runs/quickstart");
  options.positional("RUN", "the folder of a run")
      .value("out", "FILE", "where to write it (RUN/report.html)")
      .flag("json", "the figures in short, as one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  std::filesystem::path run = *parsed->value("RUN");
  auto out = parsed->value("out");
  auto made = out ? report::write_report(run, *out) : report::write_report(run);
  if (parsed->flag("json")) {
    fmt::print("{}", dump(as_json(made)));
    return 0;
  }
  fmt::print("{}", report::summary_text(made.run, made.figures));
  if (const auto kinds = report::kinds_text(made.run); !kinds.empty()) fmt::print("\n{}", kinds);
  if (!made.notes.empty()) fmt::print("\n{}\n", styled("Not in the report", Style::bold));
  for (const auto& note : made.notes) fmt::print("  {}\n", note);
  fmt::print("\n{} ({})\n", made.file.string(), human_bytes(made.bytes));
  return 0;
}

} // namespace fvlm::cli
