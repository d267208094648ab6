// A connector with several rows a frame in place of <image> trains on dialogues with two images, resumes, is evaluated,
// answers and is traced, and its packs mean what the dialogues say one by one.
#include "../train/small_run.h"
#include "base/error.h"
#include "data/media/write_image.h"
#include "data/preprocess.h"
#include "data/shards/shard_writer.h"
#include "every_patch.h"
#include "feed/mix_data.h"
#include "infer/generator.h"
#include "model/loading.h"
#include "model/trace.h"
#include "model/weights/visual_rows.h"
#include "recipe/positions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int64_t placeholder = visual_placeholder;

const bool every_patch_is_registered = [] {
  connector::all_settings().push_back(connector::every_patch_settings());
  model::register_connector("every_patch", model::every_patch_connector);
  return true;
}();

const char* dialogue_recipe = R"(
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function mix(source)
  source.max_frames, source.max_text_tokens, source.system = 2, 96, ""
  return fvlm.mix(source)
end
local function stage(name, described)
  described.optimizer = fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }
  described.schedule = fvlm.constant {}
  described.batch = 8
  described.packing = described.packing or { frames = 16, tokens = 1024, segments = 8 }
  return fvlm.stage(name, described)
end
return fvlm.recipe {
  name = "dialogues", precision = "fp32", log_every = 2,
  model = fvlm.model {
    image_size = 16,
    vision = fvlm.dinov2 { width = 16, layers = 2, heads = 2, patch_size = 8 },
    decoder = fvlm.llama { width = 16, layers = 2, heads = 2, mlp = 32, max_positions = 256, tokenizer = data .. "/tokenizer" },
    connector = fvlm.every_patch {},
  },
  checkpoint = { every = 3, keep_last = 2 },
  loader = { quarantine = { count = 100 } },
  stage("align", {
    data = mix { { data .. "/dialogues/train.tar" } }, objective = fvlm.next_token { on = "all" }, samples = 80,
    evaluation = { every = 5, fvlm.evaluation "heldout" { data = mix { { data .. "/dialogues/train.tar" } }, samples = 6, show = 2 } },
  }),
  stage("prefer", {
    data = mix { { data .. "/dialogues/pairs.tar" } }, objective = fvlm.dpo { beta = 0.1 }, samples = 24,
  }),
}
)";

std::string plain_png(uint8_t red, uint8_t green, uint8_t blue) {
  Image image{16, 16, {}};
  for (int i = 0; i < 16 * 16; ++i) image.rgb.insert(image.rgb.end(), {red, green, blue});
  return write_png(image);
}

class Placeholders : public SmallRun {
 protected:
  Placeholders() {
    write_file_atomic(recipe(), dialogue_recipe);
    fs::create_directories(data() / "dialogues");
    ShardWriter train(data() / "dialogues/train.tar"), pairs(data() / "dialogues/pairs.tar");
    for (int i = 0; i < 40; ++i) {
      const bool first = i % 3 == 0;
      const std::string which = first ? "the first" : "the second", other = first ? "the second" : "the first";
      add_images(train, i, first);
      const std::string question = "Which is red, <image> or <image>?";
      train.add(key(i) + ".json",
                json{{"messages",
                      {{{"role", "user"}, {"content", i % 2 ? "<image> Look." : "Look: <image>"}},
                       {{"role", "assistant"}, {"content", "Yes."}},
                       {{"role", "user"},
                        {"content", {{{"type", "text"}, {"text", "Is this redder? "}}, {{"type", "image"}}}}},
                       {{"role", "assistant"}, {"content", which}}}}}
                    .dump());
      add_images(pairs, i, first);
      pairs.add(key(i) + ".json",
                json{{"user", question}, {"chosen_assistant", which}, {"rejected_assistant", other}}.dump());
    }
    add_images(train, 40, true);
    train.add(key(40) + ".json", json{{"user", "One <image> alone"}, {"assistant", "no"}}.dump());
    train.commit();
    pairs.commit();
  }

  static std::string key(int number) { return fmt::format("{:03}", number); }
  static void add_images(ShardWriter& shard, int number, bool first) {
    const std::string red = plain_png(200, static_cast<uint8_t>(number), 10), blue = plain_png(10, 20, 200);
    shard.add(key(number) + ".000.png", first ? red : blue);
    shard.add(key(number) + ".001.png", first ? blue : red);
  }

  fs::path checkpoint(const std::string& run, const char* stage, int64_t step) const {
    return StageFolder(folder(run) / stage).of(step);
  }
};

// The dialogue's decoder input, row by row, and the hidden states of a plain pass over it, one row at a time.
at::Tensor plain_hidden(const model::Model& model, ops::Operations& ops, const at::Tensor& visual,
                        const std::vector<int64_t>& tokens) {
  const bool in_place = std::count(tokens.begin(), tokens.end(), placeholder) > 0;
  std::vector<at::Tensor> rows, hidden;
  int64_t next = 0;
  if (!in_place)
    while (next < visual.size(0)) rows.push_back(visual[next++]);
  for (const int64_t token : tokens)
    rows.push_back(token == placeholder ? visual[next++] : model.decoder().embedding().value()[token]);
  auto pages = model.decoder().make_kv_pages(ops, 2, std::ssize(rows), 0);
  for (const at::Tensor& row : rows) {
    model::PassRows one(std::ssize(rows));
    one.begin_sequence(std::array<int32_t, 1>{1});
    one.append(0, std::ssize(hidden));
    hidden.push_back(model.decoder().forward(ops, row.unsqueeze(0), pages, {one, at::kCPU})[0].clone());
  }
  return at::stack(hidden);
}

TEST_F(Placeholders, APackIsItsDialoguesOneByOne) {
  run("run", {}, {.stage = "align", .max_steps = 1});
  const auto model = model::load_model(checkpoint("run", "align", 1), {});
  model::Execution execution;
  ops::Operations ops(registry_, execution.operations());
  std::vector<model::Sample> samples(3);
  const auto text = [](std::vector<int64_t> tokens) {
    return model::Text{tokens, std::vector<bool>(tokens.size(), true)};
  };
  const int64_t p = placeholder;
  for (int64_t i = 0; i < 2; ++i)
    samples[static_cast<size_t>(i)].frames =
        at::arange(2 * 3 * 16 * 16, at::kFloat).div(700).sub(0.3 * double(i + 1)).view({2, 3, 16, 16});
  samples[0].texts = {text({5, p, p, p, p, 9, 3, p, p, p, p, 7}), text({p, p, p, p, 8, p, p, p, p})};
  samples[1].texts = {text({11, 12, 13})};
  samples[2].texts = {text({21, 22})};
  const auto reader = model->frame_reader(16, 16);
  EXPECT_EQ(reader.rows_per_frame, 4);
  auto capacity = model::Capacity::of(samples, 4);
  capacity.rows += 7;
  capacity.frames += 1;
  const auto pack = model::make_pack(samples, capacity, reader, ops.tensor_options());
  ops::Tape tape(ops::Tape::Mode::forward_only);
  const auto seen = model->encode(tape, ops, pack, "patches");
  const at::Tensor hidden = model->decode(tape, ops, seen.tokens, pack).data;
  int64_t begin = 0;
  for (const model::Sample& sample : samples) {
    const at::Tensor visual =
        sample.frames.defined() ? seen.tokens.data.narrow(0, &sample == &samples[0] ? 0 : 8, 8) : at::Tensor();
    for (const model::Text& one : sample.texts) {
      const at::Tensor plain = plain_hidden(*model, ops, visual.defined() ? visual : at::zeros({0, 16}), one.tokens);
      const double off = (hidden.narrow(0, begin, plain.size(0)) - plain).abs().max().item<double>();
      EXPECT_LT(off, 1e-5) << "text at row " << begin;
      begin += plain.size(0);
    }
  }
  EXPECT_EQ(begin, capacity.rows - 7);
}

TEST_F(Placeholders, TrainsAndResumesToTheSameBits) {
  run("whole");
  run("stopped", {}, {.max_steps = 4});
  run("stopped", {}, {.max_steps = 9});
  run("stopped");
  expect_equal_runs("whole", "stopped");
  std::vector<double> losses;
  for (const auto& line : metrics(folder("whole"))) {
    if (line["kind"] == "evaluation") {
      EXPECT_GT(line["loss"].get<double>(), 0);
    }
    if (line["kind"] != "step") continue;
    const double texts = line["stage"] == "prefer" ? 2 : 1;
    EXPECT_EQ(line["decoder_tokens"].get<double>(),
              line["text_tokens"].get<double>() + texts * 4 * line["frames"].get<double>());
    if (line["stage"] == "align") losses.push_back(line["loss"]);
  }
  ASSERT_GT(losses.size(), 2u);
  EXPECT_LT(losses.back(), losses.front()) << "nothing was learnt";
  const auto last = content(checkpoint("whole", "align", 10)), first = content(checkpoint("whole", "align", 9));
  EXPECT_NE(last.at("connector.safetensors"), first.at("connector.safetensors")) << "the connector does not train";
  EXPECT_THAT(read_file(folder("whole") / "quarantine.log"),
              testing::AllOf(HasSubstr("040"), HasSubstr("the text has 1 <image>, and the sample has 2 images")));
  const json shown = json::parse(read_file(folder("whole") / "align/show/heldout/000.json"));
  EXPECT_THAT(shown["question"].get<std::string>(), HasSubstr("[4 visual rows]"));
}

TEST_F(Placeholders, AnswersAsItIsTraced) {
  run("run", {}, {.stage = "align"});
  const fs::path model = checkpoint("run", "align", 10), batch = folder("batch.safetensors"),
                 out = folder("out.safetensors");
  const at::Tensor frames = at::arange(2 * 3 * 16 * 16, at::kFloat).div(700).sub(1).view({2, 3, 16, 16});
  const int64_t p = placeholder;
  infer::Generator generator(model, {}, registry_);
  infer::GenerateOptions options;
  options.limit = 1;
  options.ignore_eos = true;
  for (const std::vector<int64_t>& prompt :
       {std::vector<int64_t>{5, p, p, p, p, 9, p, p, p, p, 3}, std::vector<int64_t>{5, 9, 3}}) {
    model::write_tensors(batch, {{"frames", frames},
                                 {"frame_counts", at::tensor({int64_t{2}}, at::kLong)},
                                 {"input_ids", at::tensor(prompt, at::kLong)},
                                 {"text_lengths", at::tensor({std::ssize(prompt)}, at::kLong)},
                                 {"loss_mask", at::ones({std::ssize(prompt)}, at::kLong)}});
    model::TraceRequest request;
    request.model = model;
    request.batch = batch;
    request.out = out;
    request.gradients = true;
    (void)model::trace(request, registry_);
    const Safetensors traced = Safetensors::open(out);
    const at::Tensor logits = model::tensor_over(traced.at("logits"));
    EXPECT_EQ(logits.size(0), 3) << "of tokens alone";
    EXPECT_EQ(model::tensor_over(traced.at("label_count")).item<int64_t>(), 2);
    EXPECT_EQ(model::tensor_over(traced.at("visual_tokens")).size(0), 8);
    EXPECT_GT(model::tensor_over(traced.at("grad.to_decoder.weight")).abs().max().item<double>(), 0);
    const auto answer = generator.answer({frames, {{prompt, {}}}}, options);
    EXPECT_EQ(answer.prompt, 3);
    EXPECT_EQ(answer.ids.front(), logits[2].argmax().item<int64_t>()) << "generation sees other rows than training";
  }
  try {
    (void)generator.answer({frames, {{{5, p, 9}, {}}}}, options);
    FAIL() << "one placeholder for eight rows";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("1 placeholder for visual rows, and its 2 frames become 8 rows, 4 each"));
  }
}

TEST_F(Placeholders, PositionsCountEveryRowOfAFrame) {
  const auto resolved = this->resolved();
  const int64_t rows = visual_rows(resolved.plan.model).per_frame;
  EXPECT_EQ(rows, 4);
  EXPECT_EQ(resolved.plan.stages[1].largest_sample(rows).tokens, 2 * (2 * 4 + 96));
  EXPECT_TRUE(recipe::find_long_sequences(resolved.plan, 104, rows).empty());
  const auto long_ones = recipe::find_long_sequences(resolved.plan, 103, rows);
  ASSERT_FALSE(long_ones.empty());
  EXPECT_EQ(long_ones.front().what,
            "2 frames of 4 decoder rows each and 96 text tokens exceed the decoder's 103 positions");
}

TEST_F(Placeholders, SurvivePreprocessing) {
  const auto plan = resolved().plan;
  const auto rows = visual_rows(plan.model);
  const auto input = preprocess_input(plan, plan.stages[0].data, rows);
  (void)preprocess(folder("prepared"), input, nullptr, {}, [](int64_t, int64_t) {});
  EXPECT_FALSE(stale_reason(folder("prepared"), input));
  auto other = input;
  other.visual_rows.per_frame = 9;
  EXPECT_TRUE(stale_reason(folder("prepared"), other)) << "it holds placeholders for another number of rows";
  const auto prepared = resolved({"stages.align.data.preprocessed=" + folder("prepared").string()}).plan;
  const feed::MixData plain(plan, plan.stages[0].data, registry_, {}),
      read(prepared, prepared.stages[0].data, registry_, {});
  for (int64_t i = 0; i < 40; ++i) {
    const Sample a = plain.samples().measure({0, 0, 0, i}), b = read.samples().measure({0, 0, 0, i});
    ASSERT_EQ(a.texts.size(), b.texts.size());
    EXPECT_EQ(a.texts[0].ids, b.texts[0].ids);
    EXPECT_EQ(a.texts[0].answer_mask, b.texts[0].answer_mask);
    EXPECT_EQ(a.texts[0].placeholders, 8);
    EXPECT_EQ(b.texts[0].placeholders, 8);
    EXPECT_EQ(a.rows(), b.rows());
    EXPECT_EQ(a.rows(), std::ssize(a.texts[0].ids));
  }
}

} // namespace
} // namespace fvlm::train
