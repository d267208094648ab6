// Headline figures and tables.
#include "base/text.h"
#include "report/html.h"
#include "report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace fvlm::report {
namespace {

std::string card(std::string_view label, std::string_view value, std::string_view below) {
  return fmt::format(R"(<div class="card"><span>{}</span><b>{}</b><small>{}</small></div>)", escaped(label),
                     escaped(value), escaped(below));
}

// A fraction as a number with a bar in the background.
std::string bar_cell(const std::optional<double>& share) {
  if (!share) return cell("–");
  return fmt::format(R"(<td class="bar"><i style="--share:{:.3f}"></i><span>{}</span></td>)",
                     std::clamp(*share, 0.0, 1.0), percent(share));
}

std::string word_of(std::string mode) {
  std::ranges::replace(mode, '_', ' ');
  return mode;
}

// "steps 1-10" without a place where a line may break.
std::string unbroken(std::string steps) {
  for (const auto& [from, to] : {std::pair("steps ", "steps\u00a0"), std::pair("-", "\u2011")})
    if (const size_t at = steps.find(from); at != steps.npos) steps.replace(at, std::string_view(from).size(), to);
  return steps;
}

double total(const PageInput& input, std::optional<double> StageFigures::*member) {
  double sum = 0;
  for (const auto& figures : input.figures) sum += (figures.*member).value_or(0);
  return sum;
}

} // namespace

bool is_noteworthy(const Event& event) {
  return event.what != "stage_end";
}

std::string headline_cards(const PageInput& input) {
  int64_t done = 0, planned = 0;
  double seconds = 0;
  std::string at;
  for (size_t s = 0; s < input.run.stages.size(); ++s) {
    const Stage& stage = input.run.stages[s];
    if (stage.planned) ++planned;
    if (stage.planned && input.figures[s].done) ++done;
    if (input.figures[s].begun && !input.figures[s].done) {
      at = fmt::format("{} at step {}", stage.name, grouped(input.figures[s].step));
      if (stage.steps) at += fmt::format(" of {}", grouped(*stage.steps));
    }
    seconds += input.figures[s].seconds;
  }
  double samples = total(input, &StageFigures::samples), tokens = total(input, &StageFigures::text_tokens),
         frames = total(input, &StageFigures::frames);
  std::string out = card("Stages done", fmt::format("{} of {}", done, planned),
                         !at.empty()       ? at
                         : done == planned ? "the run is complete"
                                           : "");
  std::vector<std::string> also;
  if (tokens > 0) also.push_back(short_count(tokens) + " text tokens");
  if (frames > 0) also.push_back(short_count(frames) + " frames");
  out += card("Samples learnt from", count_text(samples), join(also, ", "));
  if (seconds > 0)
    out += card("Training time", human_duration(seconds), figure(samples / seconds) + " samples a second");
  for (size_t s = input.run.stages.size(); s-- > 0;)
    if (input.figures[s].last_loss) {
      const StageFigures& of = input.figures[s];
      out += card("Final loss, " + input.run.stages[s].name, fixed(of.last_loss),
                  fmt::format("from {}, {}", fixed(of.first_loss), unbroken(of.first_loss_steps.text())));
      break;
    }
  // The latest accuracy of each set, in its first mode.
  std::vector<const EvaluationLine*> shown;
  for (const auto& line : input.evaluations) {
    if (!line.find("accuracy")) continue;
    auto same = std::ranges::find_if(shown, [&](const auto* other) { return other->set == line.set; });
    if (same == shown.end())
      shown.push_back(&line);
    else if ((*same)->mode == line.mode)
      *same = &line;
  }
  for (const auto* line : shown)
    out +=
        card("Accuracy, " + line->set, percent(line->find("accuracy")),
             fmt::format("{}{}", word_of(line->mode),
                         line->find("samples") ? ", " + count_text(line->find("samples")) + " held-out samples" : ""));
  return "<div class=\"cards\">" + out + "</div>\n";
}

std::string bytes(std::optional<double> count) {
  return count ? human_bytes(static_cast<uint64_t>(std::max(0.0, *count))) : "–";
}

std::string stage_table(const PageInput& input) {
  std::string rows;
  bool padding = false, memory = false, device_memory = false, mfu = false, skipped = false;
  for (const auto& figures : input.figures) {
    padding = padding || figures.padding;
    memory = memory || figures.memory_bytes;
    device_memory = device_memory || figures.device_memory_bytes;
    mfu = mfu || figures.mfu;
    skipped = skipped || figures.skipped_steps.value_or(0) > 0;
  }
  const FirstLossLabel label(input.figures);
  std::vector<std::string> header{"<stage",     "steps",    "samples", "time", "samples/s", unbroken(label.header),
                                  "final loss", "data wait"};
  if (padding) header.emplace_back("padding");
  if (memory) header.emplace_back("memory");
  if (device_memory) header.emplace_back("GPU memory");
  if (mfu) header.emplace_back("MFU");
  if (skipped) header.emplace_back("skipped");
  header.emplace_back("<learns");
  for (size_t s = 0; s < input.run.stages.size(); ++s) {
    const Stage& stage = input.run.stages[s];
    const StageFigures& figures = input.figures[s];
    std::string state = figures.done ? "done" : figures.begun ? "under way" : "not begun";
    std::string steps = figures.begun ? grouped(figures.step) : "–";
    if (stage.steps && !(figures.begun && figures.step == *stage.steps)) steps += " of " + grouped(*stage.steps);
    rows += fmt::format("<tr><th class=\"text\">{} <span class=\"state {}\">{}</span></th>", escaped(stage.name),
                        figures.done    ? "done"
                        : figures.begun ? "going"
                                        : "idle",
                        state);
    rows += cell(steps) + cell(count_text(figures.samples));
    rows +=
        cell(figures.seconds > 0 ? human_duration(figures.seconds) : "–") + cell(figure(figures.samples_per_second));
    const std::string beside = label.beside(figures);
    rows += beside.empty() ? cell(fixed(figures.first_loss))
                           : fmt::format("<td>{} <small>{}</small></td>", fixed(figures.first_loss), beside);
    rows += figures.has_final_loss()
                ? fmt::format("<td>{} <small>{}</small></td>", fixed(figures.last_loss), figures.last_loss_steps.text())
                : cell(figures.last_loss ? StageFigures::only_loss : "–");
    rows += cell(percent(figures.data_wait));
    if (padding) rows += cell(percent(figures.padding));
    if (memory) rows += cell(bytes(figures.memory_bytes));
    if (device_memory) rows += cell(bytes(figures.device_memory_bytes));
    if (mfu) rows += cell(percent(figures.mfu));
    if (skipped) rows += cell(count_text(figures.skipped_steps));
    rows += text_cell(stage.objective, "dim long");
    rows += "</tr>";
  }
  std::string samples;
  for (const Stage& stage : input.run.stages)
    if (stage.counts && stage.counts->all_skipped() + stage.counts->cut > 0)
      samples +=
          fmt::format("<p class=\"note\"><b>{}</b>: {}</p>\n", escaped(stage.name), escaped(stage.counts->text()));
  return table(header, rows) + samples +
         "<p class=\"note\">Losses are means: the first over the steps that are named, the final one over the last "
         "twentieth of a stage’s lines. Shares are means over its lines, memory is the most of any.</p>\n";
}

struct Column {
  const char *name, *title;
  enum Form { bar, share, fixed, mean } form;
};

// A table of evaluations: of `columns` those that any of the lines has.
std::string evaluations_table(const std::vector<const EvaluationLine*>& lines, std::span<const Column> columns,
                              bool with_measure) {
  std::vector<Column> used;
  std::vector<std::string> header{"<set", "<mode"};
  for (const auto& column : columns)
    if (std::ranges::any_of(lines, [&](const auto* line) { return line->find(column.name).has_value(); })) {
      used.push_back(column);
      header.emplace_back(column.title);
    }
  header.emplace_back("samples");
  if (with_measure) header.emplace_back("<measure");
  header.emplace_back("<after");
  std::string rows, before;
  for (const auto* line : lines) {
    std::string set = line->stage + "\n" + line->set;
    rows += set == before ? "<tr>" : "<tr class=\"group\">";
    rows += set == before ? "<td></td>" : fmt::format("<th class=\"text\">{}</th>", escaped(line->set));
    before = set;
    rows += text_cell(word_of(line->mode));
    for (const auto& [name, title, form] : used) {
      const auto value = line->find(name);
      rows += form == Column::bar     ? bar_cell(value)
              : form == Column::share ? cell(percent(value))
              : form == Column::fixed ? cell(fixed(value))
                                      : cell(value ? figure(*value) : "–");
    }
    rows += cell(count_text(line->find("samples")));
    if (with_measure) rows += text_cell(word_of(line->measure), "dim");
    rows += text_cell(fmt::format("{} {}", line->stage, grouped(line->step)), "dim") + "</tr>";
  }
  return table(header, rows);
}

std::string evaluation_tables(const PageInput& input) {
  if (input.evaluations.empty()) return "";
  static constexpr Column columns[] = {{"accuracy", "accuracy", Column::bar},
                                       {"recall_at_1", "recall@1", Column::bar},
                                       {"recall_at_5", "recall@5", Column::share},
                                       {"mrr", "MRR", Column::fixed},
                                       {"iou", "IoU", Column::fixed},
                                       {"box_accuracy", "box accuracy", Column::bar},
                                       {"bits_per_byte", "bits per byte", Column::fixed},
                                       {"loss", "loss", Column::fixed},
                                       {"margin", "margin", Column::fixed},
                                       {"reward_accuracy", "reward accuracy", Column::bar},
                                       {"reward_margin", "reward margin", Column::fixed},
                                       {"attention_entropy", "attention entropy", Column::fixed}};
  // Of generated answers: `accuracy` is the share of exact matches, `loss` the NLL of what was expected.
  static constexpr Column of_answers[] = {{"accuracy", "exact match", Column::bar},
                                          {"f1", "F1", Column::share},
                                          {"anls", "ANLS", Column::share},
                                          {"rouge_l", "ROUGE-L", Column::share},
                                          {"character_error_rate", "CER", Column::share},
                                          {"word_error_rate", "WER", Column::share},
                                          {"vqa_accuracy", "VQA accuracy", Column::share},
                                          {"cider", "CIDEr", Column::fixed},
                                          {"loss", "NLL", Column::fixed},
                                          {"first_token_accuracy", "first token", Column::share},
                                          {"first_token_top5_accuracy", "in top 5", Column::share},
                                          {"prompt_tokens", "prompt tokens", Column::mean},
                                          {"latents", "latents", Column::mean},
                                          {"source_bytes", "source bytes", Column::mean},
                                          {"wire_bytes", "wire bytes", Column::mean},
                                          {"attention_entropy", "attention entropy", Column::fixed}};
  std::vector<const EvaluationLine*> answers, others;
  for (const auto& line : input.evaluations) (line.measure == "answer" ? answers : others).push_back(&line);
  std::string out = others.empty() ? "" : evaluations_table(others, columns, true);
  if (!answers.empty()) out += "<h3>Generated answers</h3>\n" + evaluations_table(answers, of_answers, false);
  // Accuracy by source or kind of question, with a column per mode.
  std::set<std::string> shown_sets;
  for (const auto& line : input.evaluations) {
    if (!shown_sets.insert(line.stage + "\n" + line.set).second) continue;
    std::vector<const EvaluationLine*> modes;
    for (const auto& other : input.evaluations)
      if (other.stage == line.stage && other.set == line.set) modes.push_back(&other);
    std::vector<std::string> kinds;
    for (const auto* mode : modes)
      for (const auto& [name, value] : mode->values)
        if (name.starts_with("accuracy.") && std::ranges::find(kinds, name) == kinds.end()) kinds.push_back(name);
    if (kinds.empty()) continue;
    std::vector<std::string> names{"<" + line.set};
    for (const auto* mode : modes) names.push_back(word_of(mode->mode));
    std::string lines;
    for (const auto& kind : kinds) {
      lines += fmt::format("<tr><th class=\"text\">{}</th>", escaped(kind.substr(9)));
      for (const auto* mode : modes) lines += bar_cell(mode->find(kind));
      lines += "</tr>";
    }
    out += fmt::format("<h3>{} by kind, after {}</h3>\n", escaped(line.set), escaped(line.stage)) +
           table(names, lines, "narrow");
  }
  return out;
}

std::string time_bars(const PageInput& input) {
  // Each part has a fixed colour in every run; unknown parts get the colours after those.
  std::vector<std::string> all = time_part_names();
  const auto contains = [](const auto& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const auto& figures : input.figures)
    for (const auto& part : figures.parts)
      if (part.name != "other" && !contains(all, part.name)) all.push_back(part.name);
  auto colour = [&](const std::string& name) {
    auto place = std::ranges::find(all, name) - all.begin();
    return name == "other" ? "rest" : colour_class(static_cast<int>(place) + 1);
  };
  std::vector<std::string> names = all; // parts of any stage, in a common order
  names.emplace_back("other");
  std::erase_if(names, [&](const std::string& name) {
    return std::ranges::none_of(input.figures, [&](const StageFigures& figures) {
      return std::ranges::any_of(figures.parts, [&](const auto& part) { return part.name == name; });
    });
  });
  if (names.empty()) return "";
  std::string bars;
  std::vector<std::string> header{"<part"};
  for (size_t s = 0; s < input.run.stages.size(); ++s) {
    const StageFigures& figures = input.figures[s];
    if (figures.parts.empty()) continue;
    header.push_back(input.run.stages[s].name);
    const double all = figures.seconds_of_parts();
    std::string pieces;
    for (const auto& part : figures.parts)
      pieces += fmt::format(R"(<i style="flex-grow:{:.4f}" class="{}" title="{}: {}, {}">{}</i>)", part.seconds / all,
                            colour(part.name), escaped(part.name), escaped(human_duration(part.seconds)),
                            percent(part.seconds / all), part.seconds / all > 0.09 ? escaped(part.name) : "");
    bars += fmt::format(R"(<div class="time"><b>{}</b><div class="stack">{}</div><span>{}</span></div>)",
                        escaped(input.run.stages[s].name), pieces, human_duration(all));
  }
  std::string rows;
  for (const auto& name : names) {
    rows += fmt::format(R"(<tr><th class="text"><i class="swatch {}"></i>{}</th>)", colour(name), escaped(name));
    for (const auto& figures : input.figures) {
      if (figures.parts.empty()) continue;
      auto part = std::ranges::find_if(figures.parts, [&](const auto& other) { return other.name == name; });
      rows += part == figures.parts.end()
                  ? cell("–")
                  : fmt::format("<td>{} <small>{}</small></td>", percent(part->seconds / figures.seconds_of_parts()),
                                human_duration(part->seconds));
    }
    rows += "</tr>";
  }
  return bars + table(header, rows, "narrow");
}

std::string event_table(const PageInput& input) {
  constexpr size_t most = 200;
  std::string rows;
  for (size_t i = 0; i < input.run.events.size() && i < most; ++i) {
    const Event& event = input.run.events[i];
    rows +=
        fmt::format(R"(<tr id="event-{}">{}<td>{}</td><td class="text"><span class="what {}">{}</span></td>{}</tr>)",
                    i + 1, text_cell(event.stage), grouped(event.step), escaped(event.what),
                    escaped(word_of(event.what)), text_cell(event.text, "long"));
  }
  if (rows.empty()) return "";
  std::string out = table({"<stage", "step", "<what", "<"}, rows);
  if (input.run.events.size() > most)
    out += fmt::format("<p class=\"note\">The first {} of {} events; metrics.jsonl has all.</p>\n", most,
                       grouped(static_cast<int64_t>(input.run.events.size())));
  return out;
}

std::string parameter_table(const PageInput& input) {
  std::string rows;
  for (const auto& stage : input.run.stages) {
    auto found = input.parameters.find(stage.name);
    if (found == input.parameters.end() || found->second.empty()) continue;
    int64_t all = 0, trained = 0;
    bool first = true;
    for (const auto& group : found->second) {
      all += group.parameters;
      if (group.trained) trained += group.parameters;
      rows += fmt::format("<tr class=\"{}{}\">", first ? "group" : "", group.trained ? "" : " frozen");
      rows += first ? fmt::format("<th class=\"text\">{}</th>", escaped(stage.name)) : "<td></td>";
      first = false;
      rows += text_cell(group.name) + cell(grouped(group.tensors)) + cell(grouped(group.parameters)) +
              text_cell(group.trained ? "trained" : "frozen");
      const std::string others = group.others_lr ? ", others " + figure(*group.others_lr) : "";
      rows += cell(group.trained ? figure(group.lr) + others : "–") +
              cell(group.trained ? figure(group.weight_decay) : "–") + "</tr>";
    }
    rows += fmt::format(
        "<tr class=\"sum\"><td></td>{}<td></td>{}{}<td></td><td></td></tr>", text_cell("all"), cell(grouped(all)),
        text_cell(fmt::format("{} trained",
                              percent(all > 0 ? static_cast<double>(trained) / static_cast<double>(all) : 0.0))));
  }
  if (rows.empty()) return "";
  return table({"<stage", "<group", "tensors", "parameters", "<", "learning rate", "weight decay"}, rows);
}

} // namespace fvlm::report
