// What a run and its rehearsal refuse, and warn of, before they train.
#include "base/error.h"
#include "budget/model_tokens.h"
#include "small_run.h"

#include <fmt/format.h>

#include <functional>

namespace fvlm::train {
namespace {

class RunRefusals : public SmallRun {
 protected:
  // By the rehearsal of stage align and by its training.
  void expect_refused(const std::vector<std::string>& sets, const std::function<void(const Error& error)>& check) {
    for (const bool rehearsed : {true, false}) try {
        if (rehearsed)
          rehearse(resolved(sets), {.folder = folder("a")}, registry_);
        else
          run("a", sets, {.stage = "align"});
        ADD_FAILURE() << "nobody missed it";
      } catch (const Error& error) {
        check(error);
      }
  }
};

TEST_F(RunRefusals, SamplesWithoutTheObjectivesAnswersAreBroken) {
  struct Wrong {
    const char *run, *stage, *data, *reason;
  };
  for (const Wrong& wrong :
       {Wrong{"a", "prefer", "captions", "it is no pair of answers, from which dpo learns"},
        Wrong{"b", "prefer", "heldout/questions", "it is no pair of answers, from which dpo learns"},
        Wrong{"c", "instruct", "pairs", "it has 2 answers, and the objective learns one"}}) {
    const std::string shards = (data() / wrong.data / "*.tar").string();
    try {
      run(wrong.run,
          {fmt::format(R"(stages.{}.data.sources.1.shards=["{}"])", wrong.stage, shards),
           fmt::format("stages.{}.from=model", wrong.stage)},
          {.stage = wrong.stage});
      ADD_FAILURE() << wrong.stage << " learnt " << wrong.data;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_NE(error.text().find(wrong.reason), std::string::npos) << error.text();
    }
  }
}

TEST_F(RunRefusals, RehearsalOpensInitialModelsAndTeachers) {
  EXPECT_NO_THROW(rehearse(resolved(), {}, registry_));
  const std::string teacher = R"(stages.prefer.objective=[{"kind":"dpo"},{"kind":"kl","teacher":"/nowhere"}])";
  for (const std::string& set : {teacher, std::string("stages.instruct.from=/nowhere")}) try {
      rehearse(resolved({set}), {}, registry_);
      ADD_FAILURE() << "nobody missed it: " << set;
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), "/nowhere");
    }
  EXPECT_THROW(rehearse(resolved(), {.from = "/nowhere"}, registry_), Error);
}

TEST_F(RunRefusals, WhatALaterStageLacksIsFoundBeforeTheFirstTrains) {
  const auto kl = [](const fs::path& teacher) {
    return R"(stages.prefer.objective=[{"kind":"dpo"},{"kind":"kl","teacher":")" + teacher.string() + "\"}]";
  };
  const std::string pairs = "stages.prefer.evaluation.sets.pairs.data.sources.1";
  for (const auto& [set, where] : {std::pair<std::string, std::string>{kl("/nowhere"), "/nowhere"},
                                   {"stages.prefer.from=/nowhere/model", "/nowhere/model"},
                                   {R"(stages.instruct.data.sources.1.shards=["/none/*.tar"])", "/none/*.tar"},
                                   {pairs + R"(.shards=["/none/*.tar"])", "/none/*.tar"}}) {
    try {
      run("a", {set});
      ADD_FAILURE() << "nobody missed it: " << set;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data) << error.text();
      EXPECT_EQ(error.where(), where) << error.text();
      EXPECT_NE(error.advice().find("stages."), std::string::npos) << "it names the key: " << error.advice();
    }
    EXPECT_FALSE(fs::exists(folder("a"))) << "nothing was trained for " << set;
  }
  // A teacher that is there, with other tokens.
  const fs::path teacher = run("teacher", {}, {.stage = "align", .max_steps = 1}).checkpoint;
  const fs::path file = teacher / "decoder" / "tokenizer.json";
  auto tokenizer = nlohmann::json::parse(read_file(file));
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["b"]);
  write_file_atomic(file, tokenizer.dump());
  EXPECT_THROW(run("a", {kl(teacher)}), Error);
  EXPECT_FALSE(fs::exists(folder("a")));
}

TEST_F(RunRefusals, WhatAStageDoesNotNeedAnyMoreOrNotYetMayBeMissing) {
  const std::string own =
      R"(stages.prefer.objective=[{"kind":"dpo"},{"kind":"kl","teacher":")" + (folder("a") / "align").string() + "\"}]";
  const std::vector<std::string> sets = {own, "stages.prefer.from=" + (folder("a") / "instruct").string()};
  EXPECT_EQ(run("a", sets, {.max_steps = 12}).stage, "instruct") << "what the run makes itself is yet to come";
  fs::rename(data() / "captions", data() / "gone");
  EXPECT_EQ(run("a", sets).steps, 24 - 12) << "the data of a stage that is done";
  fs::rename(data() / "gone", data() / "captions");
  const std::vector<std::string> elsewhere = {"stages.align.from=/nowhere/model"};
  EXPECT_EQ(run("b", elsewhere, {.from = folder("a"), .max_steps = 1}).steps, 1) << "--from replaces it";
}

TEST_F(RunRefusals, ATeacherMakesAsManyRowsOfAFrameAsTheModel) {
  change_recipe("connector = { query_dim = 12 }", "connector = fvlm.mlp {}");
  change_recipe(", fvlm.next_token { on = \"all\", pass = \"coarse\", weight = 0.5 }", "");
  change_recipe("patch_size = 8", "patch_size = 4");
  const fs::path teacher = run("teacher", {}, {.stage = "align", .max_steps = 1}).checkpoint;
  change_recipe("patch_size = 4", "patch_size = 8");
  const std::vector<std::string> sets = {fmt::format(
      R"(stages.align.objective=[{{"kind":"next_token"}},{{"kind":"kl","teacher":"{}"}}])", teacher.string())};
  expect_refused(sets, [&](const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_EQ(error.where(), teacher.string());
    EXPECT_STREQ(error.what(),
                 "the teacher makes 17 decoder rows of a frame, and the model 5, and both read the same packs");
  });
}

TEST_F(RunRefusals, ATeacherHasTheModelsTokens) {
  const fs::path teacher = run("teacher", {}, {.stage = "align", .max_steps = 1}).checkpoint;
  const std::vector<std::string> sets = {fmt::format(
      R"(stages.align.objective=[{{"kind":"next_token"}},{{"kind":"kl","teacher":"{}"}}])", teacher.string())};
  EXPECT_NO_THROW(rehearse(resolved(sets), {.folder = folder("a")}, registry_));
  const fs::path file = teacher / "decoder" / "tokenizer.json";
  auto tokenizer = nlohmann::json::parse(read_file(file));
  write_file_atomic(file, tokenizer.dump(1)); // the same in other bytes
  EXPECT_NO_THROW(rehearse(resolved(sets), {.folder = folder("a")}, registry_));
  auto& vocabulary = tokenizer["model"]["vocab"];
  std::swap(vocabulary["a"], vocabulary["b"]);
  write_file_atomic(file, tokenizer.dump());
  expect_refused(sets, [&](const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_EQ(error.where(), teacher.string());
    const auto id = std::min(vocabulary["a"].get<int>(), vocabulary["b"].get<int>());
    const bool swapped = vocabulary["a"].get<int>() == id; // as the teacher has it
    EXPECT_EQ(error.what(),
              fmt::format("the teacher has another tokenizer: id {} is '{}' there and '{}' in the recipe's", id,
                          swapped ? "a" : "b", swapped ? "b" : "a"));
  });
}

TEST_F(RunRefusals, ATeacherWithAPaddedEmbeddingIsToldFromOneWithOtherTokens) {
  const plan::Plan plan = resolved().plan;
  const fs::path teacher = run("teacher", {}, {.stage = "align", .max_steps = 1}).checkpoint;
  const auto advice = [&](int64_t rows, int64_t own) -> std::string {
    try {
      budget::require_teacher_tokens(plan.model, teacher, rows, own);
    } catch (const Error& error) {
      return fmt::format("{}; {}", error.what(), error.advice());
    }
    return "";
  };
  EXPECT_EQ(advice(151936, 151936), "");
  const std::string padded = advice(152064, 151936);
  EXPECT_NE(padded.find("the teacher's embedding has 152,064 rows, and the model's 151,936"), std::string::npos)
      << padded;
  EXPECT_NE(padded.find("their tokens are the same"), std::string::npos) << padded;
  EXPECT_NE(padded.find("resize_token_embeddings(151936)"), std::string::npos) << padded;
  fs::remove(teacher / "decoder" / "tokenizer.json");
  const std::string unknown = advice(152064, 151936);
  EXPECT_NE(unknown.find("a teacher with the model's own tokenizer"), std::string::npos) << unknown;
}

TEST_F(RunRefusals, ARehearsalRefusesAnOptimizerThatNoPluginHas) {
  const std::string lion = R"(stages.align.optimizer={"kind":"optimizer","algorithm":"lion","lr":0.001})";
  try {
    rehearse(resolved({lion}), {}, registry_);
    ADD_FAILURE() << "nobody missed it";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::plugin);
    EXPECT_NE(error.text().find("no plugin implements fvlm.optimizer/1:lion"), std::string::npos) << error.text();
    EXPECT_EQ(error.advice().find("\"reference\""), std::string::npos) << "the engine has none: " << error.advice();
  }
}

TEST_F(RunRefusals, ARehearsalAsksOptimizersForWhatTheStageTrains) {
  EXPECT_NO_THROW(
      rehearse(resolved({R"(stages.align.optimizer={"kind":"muon","lr":0.02,"others":{"lr":0.001}})"}), {}, registry_));
  const std::vector<std::string> vectors = {
      R"(stages.align.optimizer={"kind":"optimizer","algorithm":"muon","lr":0.02})"};
  expect_refused(vectors, [&](const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::plugin);
    EXPECT_NE(error.text().find("muon"), std::string::npos) << error.text();
  });
}

TEST_F(RunRefusals, ASkippedModuleThatIsMisspeltIsRefused) {
  change_recipe("checkpoint = {", R"(quantization = { scheme = "int8", skip = { "connector.*", "vison.*" } },
  checkpoint = {)");
  change_recipe("samples = 80,", "samples = 80, quantization_aware = true,");
  expect_refused({}, [&](const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_STREQ(error.what(), "quantization.skip vison.*: no module of the model matches");
  });
  // A decoder whose head is tied to the embedding has no module of this name.
  EXPECT_NO_THROW(rehearse(resolved({R"(quantization.skip=["decoder.lm_head"])"}), {}, registry_));
}

TEST_F(RunRefusals, AFolderOfDataBecomesNoRun) {
  fs::create_directories(folder("shards"));
  write_file_atomic(folder("shards") / "a.tar", std::string(1024, '\0'));
  try {
    run("shards");
    ADD_FAILURE() << "it was trained into";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(error.what(), "this folder is not empty and holds no run: it has a.tar");
  }
  EXPECT_FALSE(fs::exists(folder("shards") / "metrics.jsonl"));
}

TEST_F(RunRefusals, ControlMemoryThatIsNoTextIsAMistakeOfTheRecipe) {
  change_recipe("samples = 80,", R"(samples = 80, control = { every = 2, run = function(m, memory)
    memory.kept = "\xff" end },)");
  try {
    run("a", {}, {.stage = "align"});
    ADD_FAILURE() << "it was kept";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_STREQ(error.what(), "the memory of `control` contains a string that is not UTF-8");
    EXPECT_NE(error.where().find(".lua:"), std::string::npos) << error.where();
  }
}

TEST_F(RunRefusals, EvaluationSetOfTrainingShardsIsNamed) {
  const auto warning_of = [&](const std::string& shards) {
    const std::string path = "stages.prefer.evaluation.sets.pairs.data.sources.1.shards";
    testing::internal::CaptureStderr();
    rehearse(resolved({fmt::format(R"({}=["{}/{}"])", path, data().string(), shards)}), {}, registry_);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warning_of("heldout/pairs/*.tar").find("trained on"), std::string::npos);
  for (const char* shards : {"pairs/*.tar", "heldout/../{heldout/,}pairs/*.tar"}) {
    const std::string warning = warning_of(shards);
    EXPECT_NE(warning.find("evaluation set pairs"), std::string::npos) << warning;
    EXPECT_NE(warning.find("trained on in the stage prefer"), std::string::npos) << warning;
    EXPECT_NE(warning.find((data() / "pairs").string()), std::string::npos) << warning;
  }
  // A part that is held out of the same list of shards is other samples.
  const auto learns = [&](const char* share) { return fmt::format("stages.prefer.data.sources.1.held_out={}", share); };
  const auto measures = [&](const char* shards, const char* share) {
    const std::string source = "stages.prefer.evaluation.sets.pairs.data.sources.1";
    return std::vector<std::string>{fmt::format(R"({}.shards=["{}/{}"])", source, data().string(), shards),
                                    fmt::format("{}.held_out={}", source, share)};
  };
  const auto is_warned_of = [&](std::vector<std::string> sets, const std::string& more) {
    sets.push_back(more);
    testing::internal::CaptureStderr();
    rehearse(resolved(sets), {}, registry_);
    return testing::internal::GetCapturedStderr().find("trained on") != std::string::npos;
  };
  EXPECT_FALSE(is_warned_of(measures("pairs/*.tar", "0.2"), learns("0.2")));
  EXPECT_TRUE(is_warned_of(measures("pairs/*.tar", "0.2"), learns("0.1")));
  EXPECT_TRUE(is_warned_of(measures("{heldout/,}pairs/*.tar", "0.2"), learns("0.2")));
  // Nor of the same shards in another order, by which samples are counted.
  const auto of_two = [&](const char* order) {
    auto sets = measures("{heldout/,}pairs/*.tar", "0.2");
    sets.push_back(fmt::format(R"(stages.prefer.data.sources.1.shards=["{}/{}pairs/*.tar"])", data().string(), order));
    return sets;
  };
  EXPECT_FALSE(is_warned_of(of_two("{heldout/,}"), learns("0.2")));
  EXPECT_TRUE(is_warned_of(of_two("{,heldout/}"), learns("0.2")));
}

TEST_F(RunRefusals, RateBeyondTheOptimizersRangeIsRefusedWithItsPlace) {
  for (const bool muon : {false, true}) {
    if (muon)
      change_recipe("described.optimizer or fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }",
                    "fvlm.muon { lr = 0.02, others = { lr = 1e6 } }");
    try {
      run("a", muon ? std::vector<std::string>{} : std::vector<std::string>{"stages.align.optimizer.lr.decoder=1e6"});
      ADD_FAILURE() << "it was not missed";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), std::string("lr = 1e+06 is out of range: adamw accepts 0 to 1000"));
      EXPECT_EQ(error.where(), muon ? "stages.align.optimizer.others" : "stages.align.optimizer");
    }
  }
}

} // namespace
} // namespace fvlm::train
