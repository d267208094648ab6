// A fresh GhostVis that learns from a stream of documents: rows, Muon's warm-up, bits per byte, and an exact resume.
#include "data/stream/data_sizes.h"
#include "model/weights/visual_rows.h"
#include "small_run.h"

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

const char* stream_recipe = R"(
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function stage(name, documents)
  return fvlm.stage(name, {
    freeze = { "vision", "connector" },
    data = fvlm.mix { { text = data .. "/documents/*.tar" }, documents = documents, max_text_tokens = 24 },
    objective = fvlm.next_token { on = "all" },
    optimizer = fvlm.muon { lr = 0.02, groups = "decoder", momentum_warmup = { from = 0.85, steps = 6 }, clip = 1,
                            weight_decay = 0, others = { lr = { embedding = 0.2, default = 0.01 }, betas = { 0.8, 0.95 } } },
    schedule = function(progress) return math.min(1, (1 - progress) / 0.2) end,
    samples = 48, batch = 4, packing = { tokens = 48 },
    evaluation = { every = 6, fvlm.evaluation "documents" {
      data = fvlm.mix { { text = data .. "/heldout/documents/*.tar" }, documents = documents, max_text_tokens = 24 },
      measure = "bits_per_byte" } },
  })
end
return fvlm.recipe {
  name = "stream", precision = "fp32", log_every = 1,
  model = fvlm.model {
    image_size = 16,
    vision = fvlm.dinov2 { width = 16, layers = 1, heads = 2, patch_size = 8 },
    decoder = fvlm.ghostvis { depth = 2, tokenizer = data .. "/tokenizer", max_positions = 64 },
    connector = fvlm.perceiver { queries = 2, layers = 1, heads = 2, projector_width = 16 },
    groups = { embedding = "decoder.model.embed_tokens.*", head = "decoder.lm_head.*" },
  },
  checkpoint = { every = 4, keep_last = 4 },
  stage("joined", "joined"), stage("isolated", "isolated"),
}
)";

class Documents : public SmallRun {
 protected:
  Documents() {
    const std::string command = std::string(FVLM_MAKE_SHAPES) + " --out " + data().string() +
                                " --frames 2 --size 16 --samples documents=40,heldout/documents=5 >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    write_file_atomic(recipe(), stream_recipe);
  }

  std::vector<double> values(const std::string& name, const std::string& stage, const char* key) const {
    std::vector<double> all;
    for (const auto& line : metrics(folder(name)))
      if (line.value("stage", "") == stage && line.contains(key)) all.push_back(line[key]);
    return all;
  }
};

TEST_F(Documents, AFreshDecoderLearnsFromRows) {
  run("whole");
  for (const char* stage : {"joined", "isolated"}) {
    const auto loss = values("whole", stage, "loss"), bits = values("whole", stage, "bits_per_byte");
    ASSERT_EQ(loss.size() - bits.size(), 12U) << "48 rows, 4 a step; evaluations have a loss, too";
    ASSERT_EQ(bits.size(), 2U);
    EXPECT_LT(bits.back(), bits.front());
    EXPECT_GT(bits.back(), 0.1);
  }
  // The head starts at zero, so every token is equally likely at first.
  const auto config = nlohmann::json::parse(read_file(folder("whole") / "joined/step-000012/decoder/config.json"));
  EXPECT_EQ(config["model_type"], "ghostvis");
  EXPECT_EQ(config["hidden_size"], 128);
  EXPECT_EQ(config["intermediate_size"], 384);
  EXPECT_EQ(config["num_key_value_heads"], 1);
  EXPECT_NEAR(values("whole", "joined", "loss").front(), std::log(config["vocab_size"].get<double>()), 1e-4);
}

TEST_F(Documents, RowsAreFullHoweverShortTheDocumentsAre) {
  write_file_atomic(data() / "short.jsonl", "{\"text\": \"red\"}\n{\"text\": \"blue\"}\n");
  const auto plan =
      resolved({fmt::format(R"(stages.joined.data.sources.1.text=["{}/short.jsonl"])", data().string())}).plan;
  const DataSizes found = measure_data_sizes(plan, plan.stages[0], nullptr, visual_rows(plan.model));
  EXPECT_TRUE(found.seen) << found.said;
  EXPECT_EQ(found.stage.data.max_text_tokens, 24);
  EXPECT_THAT(found.said, testing::HasSubstr("at most 0 frames and 24 tokens"));
}

TEST_F(Documents, ResumeWithinADocumentIsExact) {
  run("whole");
  TrainRequest request;
  for (const int64_t steps : {5, 4, 7}) {
    request.max_steps = steps;
    run("pieces", {}, request);
  }
  request.max_steps = -1;
  run("pieces", {}, request);
  for (const char* stage : {"joined", "isolated"})
    for (const char* file : {"decoder/model.safetensors", "training_state/optimizer.safetensors"})
      EXPECT_TRUE(read_file(folder("whole") / stage / "step-000012" / file) ==
                  read_file(folder("pieces") / stage / "step-000012" / file))
          << stage << ": " << file;
}

} // namespace
} // namespace fvlm::train
