#include "report/page.h"

#include "base/file.h"
#include "report/html.h"
#include "report/page_layout.h"
#include "report/sections.h"

#include <fmt/format.h>

namespace fvlm::report {

namespace {

std::string about(const RecordedRun& run) {
  std::string out;
  auto add = [&](const char* label, const std::string& value) {
    if (!value.empty()) out += fmt::format("<span>{} <b>{}</b></span>", label, escaped(value));
  };
  add("recipe", run.recipe);
  add("plan", run.hash.substr(0, 12));
  add("precision", run.precision);
  add("seed", run.seed);
  add("last line", run.last_line_at);
  return out;
}

std::string report_html(const RecordedRun& run, std::vector<std::string>& notes, bool is_live = false) {
  PageInput input{run, {}, last_evaluations(run), {}, {}, {}};
  for (const auto& stage : run.stages) input.figures.push_back(figures_of(stage));
  input.plan = read_plan_values(run.folder);
  input.parameters = read_parameters(run.folder, notes);
  notes.insert(notes.end(), run.notes.begin(), run.notes.end());
  input.samples = read_shown_samples(run, notes);
  std::string drawn = curves(input);
  std::vector<Section> sections = {{"stages", "Stages", stage_table(input)},
                                   {"results", "Results", evaluation_tables(input)},
                                   {"curves", "Curves",
                                    drawn.empty() ? ""
                                                  : "<div class=\"charts\">\n" + drawn +
                                                        "</div>\n<p class=\"note\">Faint: as logged. Firm: smoothed "
                                                        "over neighbours on both sides. Flags mark events.</p>\n"},
                                   {"time", "Where the time went", time_bars(input)},
                                   {"samples", "Answers", compared_answers(input) + sample_cards(input, notes)},
                                   {"events", "Events", event_table(input)},
                                   {"parameters", "Parameters", parameter_table(input)},
                                   {"plan", "Plan", plan_tables(input)}};
  if (!sections.back().content.empty())
    sections.back().content =
        "<p class=\"controls\"><label><input type=\"checkbox\" id=\"written\"> only what the recipe wrote</label></p>\n"
        "<p class=\"note\">Dimmed values were not written anywhere: they are defaults, or follow from others.</p>\n" +
        sections.back().content;
  sections.push_back({"notes", "Not in this report", notes_html(notes)});
  std::string name = run.name.empty() ? run.folder.filename().string() : run.name;
  return page_html_of({"Training report", name, about(run), headline_cards(input), std::move(sections), is_live});
}

} // namespace

Report write_report(const std::filesystem::path& folder, const std::filesystem::path& file) {
  Report report;
  report.run = read_run(folder);
  for (const auto& stage : report.run.stages) report.figures.push_back(figures_of(stage));
  std::string html = report_html(report.run, report.notes);
  report.file = file;
  report.bytes = html.size();
  write_file_atomic(file, html);
  return report;
}

std::string live_report(const std::filesystem::path& folder) {
  std::vector<std::string> notes;
  return report_html(read_run(folder), notes, true);
}

Report write_report(const std::filesystem::path& folder) {
  return write_report(folder, folder / "report.html");
}

} // namespace fvlm::report
