// Questions that an encoder of bytes reads: what the model answers from it, side by side with what the sets of the same
// samples answer whose text the decoder reads itself.
#include "base/text.h"
#include "report/html.h"
#include "report/sections.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::report {
namespace {

bool is_same_question(const ShownSample& a, const ShownSample& b) {
  return a.stage == b.stage && a.step == b.step && !a.key.empty() && a.key == b.key && a.expected == b.expected;
}

// A set in one of its modes.
struct Reader {
  std::string set, mode, title;
};

std::vector<Reader> readers_of(const std::vector<const ShownSample*>& samples) {
  std::vector<Reader> readers;
  for (const ShownSample* sample : samples)
    for (const ModeAnswer& answer : sample->answers) {
      const bool known = std::ranges::any_of(
          readers, [&](const Reader& reader) { return reader.set == sample->set && reader.mode == answer.mode; });
      const bool is_plain = sample->answers.size() == 1 || answer.mode == sample->set;
      if (!known)
        readers.push_back({sample->set, answer.mode, is_plain ? sample->set : sample->set + " " + answer.mode});
    }
  for (Reader& reader : readers) std::replace(reader.title.begin(), reader.title.end(), '_', ' ');
  return readers;
}

std::string answer_cell(const Reader& reader, const ShownSample& row, const std::vector<const ShownSample*>& samples) {
  for (const ShownSample* sample : samples) {
    if (sample->set != reader.set || !is_same_question(*sample, row)) continue;
    for (const ModeAnswer& answer : sample->answers) {
      if (answer.mode != reader.mode) continue;
      // A text that was cut is not the whole source.
      const bool is_whole =
          sample->question.find(row.question.substr(0, row.question.find_last_not_of(" \n") + 1)) != std::string::npos;
      return fmt::format(R"(<td class="{}" data-reader="{}">{} <b>{}</b>{}</td>)", answer.right ? "right" : "wrong",
                         escaped(reader.title), answer.text.empty() ? "<i>nothing</i>" : escaped(answer.text),
                         answer.right ? "✓" : "✗",
                         is_whole ? "" : fmt::format("<small>reads “{}”</small>", escaped(sample->question)));
    }
  }
  return fmt::format(R"(<td data-reader="{}">–</td>)", escaped(reader.title));
}

} // namespace

bool is_compared(const ShownSample& sample, const std::vector<ShownSample>& all) {
  if (sample.answers.empty()) return false;
  return sample.read_as_bytes || std::ranges::any_of(all, [&](const ShownSample& other) {
           return other.read_as_bytes && !other.answers.empty() && is_same_question(sample, other);
         });
}

std::string compared_answers(const PageInput& input) {
  std::string out;
  for (const Stage& stage : input.run.stages) {
    std::vector<const ShownSample*> compared, rows;
    for (const ShownSample& sample : input.samples) {
      if (sample.stage != stage.name || !is_compared(sample, input.samples)) continue;
      compared.push_back(&sample);
      const bool known =
          std::ranges::any_of(rows, [&](const ShownSample* row) { return is_same_question(*row, sample); });
      if (sample.read_as_bytes && !known) rows.push_back(&sample);
    }
    if (rows.empty()) continue;
    const std::vector<Reader> readers = readers_of(compared);
    std::string head, body;
    for (const Reader& reader : readers) head += fmt::format("<th>{}</th>", escaped(reader.title));
    for (const ShownSample* row : rows) {
      body += fmt::format(R"(<tr><th>{}</th><td data-reader="expected">{}</td>)", escaped(row->question),
                          escaped(row->expected));
      for (const Reader& reader : readers) body += answer_cell(reader, *row, compared);
      body += "</tr>\n";
    }
    out += fmt::format(
        "<h3>The same questions by what the decoder reads, after {} step {}</h3>\n<div class=\"wide\"><table "
        "class=\"compared\"><thead><tr><th>source</th><th>expected</th>{}</tr></thead><tbody>\n{}"
        "</tbody></table></div>\n",
        escaped(stage.name), grouped(rows.front()->step), head, body);
  }
  return out;
}

} // namespace fvlm::report
