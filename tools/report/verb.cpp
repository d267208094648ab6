// fvlm-engine report: writes the HTML report of a run and prints its main figures.
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

void write_report_page(const std::filesystem::path& run) {
  report::write_report(run);
}

int run_report(Arguments arguments) {
  Options options(
      "report RUN [--out FILE] [--json]",
      "Write one self-contained HTML file about a run: curves, results, where the time went, answers with the\n"
      "attention over frames, and the plan. Works while the run is still training.",
      "report runs/quickstart");
  options.positional("RUN", "the run folder")
      .value("out", "FILE", "output file; default RUN/report.html")
      .flag("json", "print the main figures as one JSON document on standard output");
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
