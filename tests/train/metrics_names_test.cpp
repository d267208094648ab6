// core/report/METRICS.md documents exactly the metrics that runs write.
#include "data/stream/sample_counts.h"
#include "model/connector/settings.h"
#include "small_run.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <set>

namespace fvlm::train {
namespace {

using nlohmann::json;

// A row of its tables: names, and the lines that have them.
struct Row {
  std::vector<std::string> names;
  std::string lines;
};

struct Kind {
  std::vector<Row> rows;
  std::map<std::string, std::set<std::string>> words; // "mode": {"coarse_fine", ...}
};

std::vector<std::string> in_backticks(std::string_view text) {
  std::vector<std::string> all;
  for (size_t begin = 0; (begin = text.find('`', begin)) != text.npos;) {
    const size_t end = text.find('`', begin + 1);
    all.emplace_back(text.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
  return all;
}

// By kind of line. What follows a word and stands in brackets, or in a table of that word, are its values.
std::map<std::string, Kind> listed() {
  std::map<std::string, Kind> kinds;
  Kind* kind = nullptr;
  std::string word; // that the table is of; empty: names
  for (const std::string& line : split(read_file(FVLM_METRICS), '\n')) {
    const std::string heading = "## kind \"";
    if (line.starts_with(heading))
      kind = &kinds[line.substr(heading.size(), line.find('"', heading.size()) - heading.size())];
    if (!kind) continue;
    if (line.starts_with("Words: "))
      for (std::string rest = line.substr(7); rest.starts_with('`');) {
        const std::string name = rest.substr(1, rest.find('`', 1) - 1);
        rest.erase(0, name.size() + 2);
        auto& values = kind->words[name];
        if (rest.starts_with(" (")) {
          for (const std::string& value : in_backticks(rest.substr(0, rest.find(')')))) values.insert(value);
          rest.erase(0, rest.find(')') + 1);
        }
        const size_t next = rest.find('`');
        rest = next == rest.npos ? "" : rest.substr(next);
      }
    if (!line.starts_with("| ")) continue;
    const auto cells = split(line, '|');
    const auto names = in_backticks(cells.at(1));
    if (names.empty())
      word = cells.at(1) == " name " ? "" : trimmed(cells.at(1));
    else if (word.empty())
      kind->rows.push_back({names, trimmed(cells.at(3))});
    else
      kind->words.at(word).insert(names.front());
  }
  return kinds;
}

// Capitals at the end of a name stand for anything.
bool stands_for(const std::string& listed, const std::string& name) {
  const size_t stem = listed.find_last_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + 1;
  return stem == listed.size() ? listed == name : name.starts_with(listed.substr(0, stem)) && name.size() > stem;
}

bool stands_for(const Row& row, const std::string& name) {
  return std::any_of(row.names.begin(), row.names.end(), [&](const auto& one) { return stands_for(one, name); });
}

class MetricsNames : public SmallRun {
 protected:
  // Together, these runs write every metric that a run on a CPU can have.
  std::vector<json> lines_of_runs() {
    change_recipe(R"(on = "all" }, samples = 80,)",
                  R"(on = "all" }, samples = 80, evaluation = { fvlm.evaluation "captions" {
                       data = mix { { data .. "/captions/*.tar", weight = 0.5 }, { data .. "/questions/*.tar", weight = 0.5 } },
                       samples = 8, measure = "loss", entropy = true, modes = { "coarse_fine", "refined", "coarse_only", "autoregressive" } },
                     fvlm.evaluation "answers" { data = mix { { data .. "/heldout/questions/*.tar", fields = { answers = "choices" } } },
                       samples = 4, measure = "answer" },
                     fvlm.evaluation "boxes" { data = mix { { text = data .. "/../boxes.jsonl" } }, samples = 1, measure = "iou" },
                     fvlm.evaluation "yes_or_no" { data = mix { { text = data .. "/../yes.jsonl" } }, samples = 2, measure = "answer" },
                     fvlm.evaluation "documents" { data = fvlm.mix { { text = data .. "/text/*.tar" }, documents = "joined", max_text_tokens = 16 },
                       samples = 16, measure = "bits_per_byte" } },)");
    write_file_atomic(folder("yes.jsonl"), R"({"user": "Is it?", "assistant": "Yes."})"
                                           "\n"
                                           R"({"user": "Is it?", "assistant": "No."})"
                                           "\n");
    write_file_atomic(folder("boxes.jsonl"), R"({"user": "Where is it?", "assistant": "[1, 2, 3, 4]"})"
                                             "\n");
    run("whole", {}, {.replicas = ThreadReplicas::Size{2, 2}});
    const StageFolder align(folder("whole") / "align");
    run("taught",
        {fmt::format(
            R"(stages.align.objective=[{{"kind":"next_token","weight":[2,1],"first":[1,9]}},{{"kind":"kl","teacher":"{}"}}])",
            align.of(align.steps().back()).string())},
        {.stage = "align"});
    run("dropping", {"stages.align.data.max_text_tokens=20", "stages.align.data.overlong=drop"}, {.stage = "align"});
    for (const char* loss : {"kto", "orpo"})
      run(loss, {fmt::format(R"(stages.prefer.objective=[{{"kind":"dpo","loss":"{}"}}])", loss)},
          {.stage = "prefer", .from = align.of(align.steps().back())});
    const fs::path judged = folder("judged.jsonl");
    write_file_atomic(judged, R"({"prompt": "Which?", "completion": "Red.", "label": true})"
                              "\n"
                              R"({"prompt": "Which?", "completion": "Blue.", "label": false})"
                              "\n");
    run("judged",
        {R"(stages.prefer.objective=[{"kind":"kto"}])",
         fmt::format(R"(stages.prefer.data.sources=[{{"text":["{}"]}}])", judged.string()), "stages.prefer.samples=8"},
        {.stage = "prefer", .from = align.of(align.steps().back())});
    run("halved", {"precision=fp16"}, {.stage = "align"});
    run("rewarded",
        {R"(stages.instruct.objective=[{"kind":"grpo","answers":2,"max_new_tokens":4,"kl":0.1}])",
         "stages.instruct.samples=8"},
        {.stage = "instruct", .from = align.of(align.steps().back())});
    const std::string found =
        fmt::format(R"([{{"shards":["{}/captions/*.tar"],"fields":{{"query":"caption"}}}}])", data().string());
    run("found",
        {R"(stages.prefer.objective=[{"kind":"contrastive"}])", "stages.prefer.data.sources=" + found,
         "stages.prefer.samples=8", "stages.prefer.evaluation.sets.pairs.measure=retrieval",
         "stages.prefer.evaluation.sets.pairs.data.sources=" + found, "stages.prefer.evaluation.sets.pairs.samples=8"},
        {.stage = "prefer", .from = align.of(align.steps().back())});
    std::vector<json> lines;
    for (const char* name : {"whole", "taught", "dropping", "kto", "orpo", "judged", "halved", "rewarded", "found"})
      for (const std::string& text : split(read_file(folder(name) / "metrics.jsonl"), '\n'))
        if (!text.empty()) lines.push_back(json::parse(text));
    return lines;
  }
};

TEST_F(MetricsNames, WhatIsListedIsWhatRunsWrite) {
  const auto kinds = listed();
  ASSERT_EQ(kinds.size(), 3u);
  std::map<std::string, std::set<std::string>> written; // by kind
  for (const json& line : lines_of_runs()) {
    const std::string name_of_kind = line.at("kind");
    ASSERT_TRUE(kinds.contains(name_of_kind)) << line;
    const Kind& kind = kinds.at(name_of_kind);
    for (const auto& [name, value] : line.items()) {
      if (name == "kind" || name == "stage" || name == "step") continue;
      if (value.is_string()) {
        ASSERT_TRUE(kind.words.contains(name)) << name << " is not listed: " << line;
        const auto& values = kind.words.at(name);
        EXPECT_TRUE(values.empty() || values.contains(value)) << name << " " << value << " is not listed";
        continue;
      }
      written[name_of_kind].insert(name);
      EXPECT_EQ(
          std::count_if(kind.rows.begin(), kind.rows.end(), [&](const Row& row) { return stands_for(row, name); }), 1)
          << name << " is listed once: " << line;
    }
    for (const Row& row : kind.rows)
      for (const std::string& name : row.names)
        EXPECT_TRUE(row.lines != "every line" || line.contains(name)) << name << " is not in every line: " << line;
  }
  for (const auto& [name, kind] : kinds)
    for (const Row& row : kind.rows) {
      EXPECT_NE(row.lines, "") << row.names.front() << " does not say when it is written";
      if (row.lines.starts_with("runs on a GPU") || row.lines.starts_with("encoders of bytes")) continue;
      const auto& names = written[name];
      EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const auto& one) { return stands_for(row, one); }))
          << name << ": no line has " << row.names.front();
    }
  std::set<std::string> modes;
  for (const auto& connector : connector::all_settings())
    for (const std::string& mode : connector.make()->mode_names()) modes.insert(mode);
  EXPECT_EQ(kinds.at("evaluation").words.at("mode"), modes) << "those of all connectors";
}

TEST_F(MetricsNames, EachReasonToSkipASampleIsListed) {
  for (const auto& [name, kind] : listed()) {
    if (name == "evaluation") continue;
    for (size_t reason = 0; reason < skip_reasons; ++reason) {
      const std::string key = fmt::format("skipped.{}", name_of(SkipReason(reason)));
      EXPECT_TRUE(std::any_of(kind.rows.begin(), kind.rows.end(), [&](const Row& row) { return stands_for(row, key); }))
          << name << ": " << key;
    }
  }
}

TEST_F(MetricsNames, TokensOfTextAndOfTheDecoderAreToldApart) {
  run("a", {}, {});
  double text = 0, frames = 0, samples = 0;
  std::string stage;
  for (const std::string& line_text : split(read_file(folder("a") / "metrics.jsonl"), '\n')) {
    if (line_text.empty()) continue;
    const json line = json::parse(line_text);
    if (line["kind"] != "step") continue;
    if (stage != line["stage"]) text = frames = samples = 0;
    stage = line["stage"];
    const double texts = stage == "prefer" ? 2 : 1; // of a sample
    EXPECT_EQ(line["decoder_tokens"], line["text_tokens"].get<double>() + texts * line["frames"].get<double>()) << line;
    // Rates are of these steps, whose time the samples' rate tells.
    const double seconds = (line["samples"].get<double>() - samples) / line["samples_per_second"].get<double>();
    const double more_text = line["text_tokens"].get<double>() - text,
                 more_frames = line["frames"].get<double>() - frames;
    EXPECT_NEAR(line["text_tokens_per_second"].get<double>() * seconds / more_text, 1, 1e-9) << line;
    EXPECT_NEAR(line["decoder_tokens_per_second"].get<double>() * seconds / (more_text + texts * more_frames), 1, 1e-9)
        << line;
    text += more_text, frames += more_frames, samples = line["samples"];
    EXPECT_FALSE(line.contains("tokens") || line.contains("tokens_per_second")) << line;
  }
  EXPECT_EQ(stage, "prefer");
}

TEST_F(MetricsNames, ControlFunctionsReadTokensUnderBothNames) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 2, run = function(m)
    if m.decoder_tokens and m.decoder_tokens > m.text_tokens and m.tokens == m.text_tokens then return fvlm.stop_stage() end
  end },)");
  EXPECT_EQ(run("a", {}, {.stage = "align"}).step, 2);
}

} // namespace
} // namespace fvlm::train
