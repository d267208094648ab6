#include "report/page.h"

#include "base/error.h"
#include "base/file.h"
#include "report/html.h"
#include "report/sections.h"

#include <fmt/format.h>

#include <map>

namespace fvlm::report {

extern const std::string_view page_html, style_css, script_js; // page/

namespace {

// Replaces each {{name}} in the template by its value, which is not searched for names itself.
std::string filled(std::string_view page, const std::map<std::string_view, std::string>& values) {
  std::string out;
  for (size_t at = 0;;) {
    size_t open = page.find("{{", at), close = page.find("}}", open);
    if (open == page.npos || close == page.npos) return out.append(page.substr(at));
    out += page.substr(at, open - at);
    auto value = values.find(page.substr(open + 2, close - open - 2));
    if (value == values.end())
      throw Error(ErrorKind::internal, fmt::format("page.html has the placeholder {}, which has no value",
                                                   page.substr(open, close + 2 - open)));
    out += value->second;
    at = close + 2;
  }
}

struct Section {
  const char *anchor, *title;
  std::string content;
};

std::string sections_html(const std::vector<Section>& sections) {
  std::string out;
  for (const auto& section : sections)
    if (!section.content.empty())
      out += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", section.anchor, section.title,
                         section.content);
  return out;
}

std::string contents_html(const std::vector<Section>& sections) {
  std::string out;
  for (const auto& section : sections)
    if (!section.content.empty()) out += fmt::format("<a href=\"#{}\">{}</a>", section.anchor, section.title);
  return out;
}

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

std::string notes_html(const std::vector<std::string>& notes) {
  std::string out;
  for (const auto& note : notes) out += fmt::format("<li>{}</li>", escaped(note));
  return out.empty() ? "" : "<ul class=\"notes\">" + out + "</ul>\n";
}

std::string report_html(const RecordedRun& run, std::vector<std::string>& notes) {
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
  return filled(page_html, {{"title", escaped(name)},
                            {"style", std::string(style_css) + further_colours()},
                            {"script", std::string(script_js)},
                            {"about", about(run)},
                            {"contents", contents_html(sections)},
                            {"cards", headline_cards(input)},
                            {"sections", sections_html(sections)}});
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

Report write_report(const std::filesystem::path& folder) {
  return write_report(folder, folder / "report.html");
}

} // namespace fvlm::report
