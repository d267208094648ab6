#include "synthetic_run.h"

#include "base/file.h"
#include "base/random.h"
#include "data/media/write_image.h"
#include "recipe/resolve.h"
#include "report/metrics_log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace fvlm::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using report::Record;

constexpr double pi = 3.14159265358979;

recipe::Resolved quickstart() {
  fs::path before = fs::current_path();
  fs::current_path(fs::path(FVLM_RECIPES).parent_path());
  auto resolved = recipe::resolve(
      {"recipes/quickstart.lua", {"stages.align.samples=64000", "stages.instruct.samples=48000"}, {}, "recipes/lib"});
  fs::current_path(before);
  return resolved;
}

// What a stage's curves are made of.
struct Shape {
  double first_loss, last_loss, tau, noise, rate, seconds_a_step;
};

class Maker {
 public:
  Maker(const fs::path& folder, const SyntheticRun& wanted)
      : folder_(folder), wanted_(wanted), resolved_(quickstart()), log_((write_plan(), folder), {}) {}

  void make() {
    static constexpr Shape shapes[] = {{4.9, 0.61, 260, 0.03, 2e-3, 0.041},
                                       {1.35, 0.034, 210, 0.05, 1e-3, 0.052},
                                       {0.6931, 0.24, 90, 0.03, 1e-4, 0.118}};
    for (int64_t s = 0; s < wanted_.stages; ++s) {
      bool last = s + 1 == wanted_.stages;
      stage(resolved_.plan.stages[static_cast<size_t>(s)], shapes[s], last ? wanted_.last_progress : 1);
    }
    log_.flush();
    if (wanted_.parameters) write_parameters();
  }

 private:
  void write_plan() { write_file_atomic(folder_ / "plan.json", recipe::plan_document(resolved_).dump(2)); }

  double normal() { return random_.normal(drawn_++); }
  double uniform() { return random_.uniform(drawn_++); }

  void stage(const plan::Stage& stage, const Shape& shape, double progress) {
    bool dpo = stage.needs_pairs();
    int64_t steps = *stage.steps, every = resolved_.plan.log_every;
    double samples = 0, batch = static_cast<double>(*stage.batch.samples), skipped = 0;
    for (int64_t step = every; step <= std::llround(static_cast<double>(steps) * progress); step += every) {
      double at = static_cast<double>(step), share = at / static_cast<double>(steps);
      double loss = shape.last_loss + (shape.first_loss - shape.last_loss) * std::exp(-at / shape.tau);
      loss *= 1 + shape.noise * normal();
      double warm = std::min(1.0, share / 0.03),
             rate = shape.rate * warm * (0.1 + 0.45 * (1 + std::cos(pi * std::max(0.0, share - 0.03) / 0.97)));
      double norm = (0.25 + 1.8 * std::exp(-at / 90)) * std::exp(0.25 * normal());
      if (wanted_.events && stage.name == "align" && step == 640) {
        loss *= 3.4, norm *= 9;
        event(stage.name, step, "spike", fmt::format("the loss {:.3f} is 3.4 times its running mean", loss));
      }
      if (wanted_.events && stage.name == "instruct" && step == 410) {
        skipped = 1;
        event(stage.name, 403, "nonfinite",
              "the gradient of the group connector is not finite: step skipped, 1 in a row");
      }
      if (wanted_.events && stage.name == "instruct" && step == 900)
        event(stage.name, 897, "out_of_memory",
              "the micro-batch goes from 32 to 16 samples, the effective batch stays");
      double seconds = static_cast<double>(every) * shape.seconds_a_step * (1 + 0.04 * normal());
      samples += batch * static_cast<double>(every);
      Record record{"step", stage.name, step, {}, {}};
      auto& v = record.values;
      v = {{"loss", loss}};
      if (dpo)
        v.emplace_back("term.dpo", loss);
      else
        v.emplace_back("term.next_token", loss);
      for (const char* group : {"connector", "decoder", "vision"}) v.emplace_back(fmt::format("lr.{}", group), rate);
      double wait = 0.004 + 0.006 * uniform() + (step == every ? 0.05 : 0);
      v.insert(v.end(), {{"gradient_norm", norm},
                         {"samples", samples},
                         {"text_tokens", samples * 21.4},
                         {"decoder_tokens", samples * (dpo ? 21.4 + 2 * 4 : 21.4 + 3.8)},
                         {"frames", samples * (dpo ? 4 : 3.8)},
                         {"samples_per_second", batch * static_cast<double>(every) / seconds},
                         {"text_tokens_per_second", batch * static_cast<double>(every) * 21.4 / seconds},
                         {"data_wait_share", wait},
                         {"padding_share", 0.07 + 0.01 * normal()},
                         {"memory_bytes", 312e6 + 4e6 * shape.first_loss},
                         {"skipped_steps", skipped}});
      if (dpo) {
        double margin = 2.6 * (1 - std::exp(-at / 110)) + 0.12 * normal();
        v.insert(v.end(), {{"reward_accuracy", std::min(1.0, 0.5 + 0.46 * (1 - std::exp(-at / 60)) + 0.02 * normal())},
                           {"reward_margin", margin},
                           {"chosen_reward", margin * 0.35},
                           {"rejected_reward", margin * -0.65}});
      }
      static constexpr std::pair<const char*, double> parts[] = {
          {"data", 0.012}, {"vision", 0.11},   {"coarse", 0.07},     {"fine", 0.13},     {"decoder", 0.15},
          {"head", 0.09},  {"backward", 0.37}, {"optimizer", 0.035}, {"metrics", 0.004}, {"checkpoint", 0.009}};
      for (const auto& [name, part] : parts)
        v.emplace_back(fmt::format("time.{}", name), seconds * part * (1 + 0.03 * normal()));
      log_.write(record);
    }
    if (progress < 1) return;
    evaluate(stage, steps);
    event(stage.name, steps, "stage_end", fmt::format("{} samples seen", stage.samples));
  }

  void event(const std::string& stage, int64_t step, const char* what, const std::string& text) {
    log_.write({"event", stage, step, {{"what", what}, {"text", text}}, {}});
  }

  void evaluate(const plan::Stage& stage, int64_t steps) {
    for (const auto& set : stage.evaluation.sets) {
      if (set.measure == plan::Measure::choice) {
        static constexpr std::pair<const char*, double> modes[] = {
            {"coarse_fine", 0.958}, {"coarse_only", 0.903}, {"autoregressive", 0.956}};
        static constexpr std::pair<const char*, double> kinds[] = {
            {"colour", 0.033}, {"first colour", 0.024}, {"last colour", 0.019}, {"shape", -0.06}, {"direction", -0.11}};
        for (const auto& [mode, accuracy] : modes) {
          Record record{"evaluation",
                        stage.name,
                        steps,
                        {{"set", set.name}, {"mode", mode}, {"measure", "choice"}},
                        {{"accuracy", accuracy},
                         {"loss", 0.11 + (1 - accuracy)},
                         {"samples", 2000},
                         {"attention_entropy", 1.94}}};
          for (const auto& [kind, more] : kinds)
            record.values.emplace_back(fmt::format("accuracy.{}", kind), std::min(1.0, accuracy + more));
          log_.write(record);
        }
        if (wanted_.samples) show(stage, set, steps);
      } else {
        log_.write({"evaluation",
                    stage.name,
                    steps,
                    {{"set", set.name}, {"mode", "coarse_fine"}, {"measure", "preference"}},
                    {{"accuracy", 0.957},
                     {"margin", 3.41},
                     {"reward_accuracy", 0.961},
                     {"reward_margin", 2.55},
                     {"loss", 0.31},
                     {"samples", 1000}}});
      }
    }
  }

  struct Colour {
    const char* name;
    std::array<uint8_t, 3> rgb;
  };
  static constexpr Colour colours[] = {{"red", {214, 64, 56}},
                                       {"green", {66, 160, 84}},
                                       {"blue", {58, 104, 206}},
                                       {"yellow", {226, 188, 60}},
                                       {"purple", {140, 82, 186}}};

  // A disc (or square) at x, y of 32 x 32 pixels on grey.
  static Image picture(double x, double y, const Colour& colour, bool square) {
    Image image{32, 32, std::vector<uint8_t>()};
    for (int pixel = 0; pixel < 32 * 32; ++pixel) image.rgb.insert(image.rgb.end(), {126, 116, 104});
    for (int row = 0; row < 32; ++row)
      for (int column = 0; column < 32; ++column) {
        double dx = column - x, dy = row - y;
        bool inside = square ? std::max(std::abs(dx), std::abs(dy)) < 5.5 : dx * dx + dy * dy < 36;
        if (inside) std::copy(colour.rgb.begin(), colour.rgb.end(), image.rgb.begin() + (row * 32 + column) * 3);
      }
    return image;
  }

  void show(const plan::Stage& stage, const plan::EvaluationSet& set, int64_t steps) {
    fs::path folder = folder_ / stage.name / "show" / set.name;
    fs::create_directories(folder);
    for (int number = 0; number < set.show; ++number) {
      const Colour &first = colours[number % 5], &last = colours[(number + 2) % 5];
      bool square = number % 3 == 1, mistaken = number == 3;
      json frames = json::array(), attention = json::array();
      for (int f = 0; f < 4; ++f) {
        double x = 7 + 6 * f, y = 9 + (number % 4) * 4 + f;
        std::string name = fmt::format("{:03}-{}.png", number, f);
        write_file_atomic(folder / name, write_png(picture(x, y, f < 2 ? first : last, square), PngContent::drawing));
        frames.push_back(name);
        attention.push_back(looked_at(x, y, f));
      }
      json sample = {{"set", set.name},       {"stage", stage.name},
                     {"step", steps},         {"source", number % 2 ? "last colour" : "shape"},
                     {"frames", frames},      {"grid", {4, 4}},
                     {"attention", attention}};
      if (number % 2) {
        sample["question"] = fmt::format("Which colour does the {} have at the end?", square ? "square" : "circle");
        sample["expected"] = last.name;
        sample["answer"] = mistaken ? first.name : last.name;
        for (const auto& colour : colours) {
          const char* likely = mistaken ? first.name : last.name;
          double loss = colour.name == likely ? 0.12 : 2.5 + 1.5 * uniform();
          if (mistaken && &colour == &last) loss = 0.9;
          sample["options"].push_back({{"text", colour.name}, {"loss", loss}});
          if (&colour == &last) sample["options"].back()["right"] = true;
        }
      } else {
        sample["question"] = number == 4 ? "What does </script><b>\"this\"</b> & 'that' show?"
                                         : "What moves from the left to the right?";
        sample["expected"] = fmt::format("a {} that turns {}", square ? "square" : "circle", last.name);
        sample["answer"] = sample["expected"];
      }
      write_file_atomic(folder / fmt::format("{:03}.json", number), sample.dump());
    }
  }

  // Near uniform in the first frame, then ever more where the shape was.
  std::vector<double> looked_at(double x, double y, int frame) {
    std::vector<double> cells;
    double total = 0, width = frame == 0 ? 30 : 9 - 1.5 * frame;
    for (int row = 0; row < 4; ++row)
      for (int column = 0; column < 4; ++column) {
        double dx = column * 8 + 4 - x, dy = row * 8 + 4 - y;
        cells.push_back(std::exp(-(dx * dx + dy * dy) / (2 * width * width)) + 0.02 * uniform());
        total += cells.back();
      }
    for (double& cell : cells) cell /= total;
    return cells;
  }

  void write_parameters() {
    json stages = json::array();
    for (const auto& stage : resolved_.plan.stages) {
      double rate = stage.name == "align" ? 2e-3 : stage.name == "instruct" ? 1e-3 : 1e-4;
      json groups = {{{"name", "connector"},
                      {"tensors", 9},
                      {"parameters", 20928},
                      {"trained", true},
                      {"lr", rate},
                      {"weight_decay", 0.01}},
                     {{"name", "vision"},
                      {"tensors", 39},
                      {"parameters", 113728},
                      {"trained", stage.name != "prefer"},
                      {"lr", rate},
                      {"weight_decay", 0.01}},
                     {{"name", "decoder"},
                      {"tensors", 20},
                      {"parameters", 105536},
                      {"trained", true},
                      {"lr", rate},
                      {"others_lr", rate / 8},
                      {"weight_decay", 0.01}}};
      stages.push_back({{"stage", stage.name}, {"groups", groups}});
    }
    write_file_atomic(folder_ / "parameters.json", stages.dump(1));
  }

  fs::path folder_;
  SyntheticRun wanted_;
  recipe::Resolved resolved_;
  report::MetricsLog log_;
  RandomStream random_{7, "made run"};
  uint64_t drawn_ = 0;
};

} // namespace

void make_run(const fs::path& folder, const SyntheticRun& wanted) {
  Maker(folder, wanted).make();
}

} // namespace fvlm::test
