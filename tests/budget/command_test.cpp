// `fvlm-engine plan`: the tables of parameters and memory.
#include "../data/small_tokenizer.h"
#include "../shell.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace fvlm {
namespace {

using nlohmann::json;
using test::Ran;
using testing::ContainsRegex;
using testing::HasSubstr;

class PlanTables : public testing::Test {
 protected:
  PlanTables() {
    std::filesystem::create_directory(scratch_.path() / "tokenizer");
    write_file_atomic(scratch_.path() / "tokenizer/tokenizer.json", test::small_tokenizer().dump());
  }

  static Ran run(const std::string& arguments) {
    return test::shell(fmt::format("cd '{}' && '{}' {}", FVLM_RECIPES, FVLM_ENGINE, arguments));
  }
  std::string quickstart() const { return "quickstart.lua --device cpu --arg data=" + scratch_.path().string(); }

  ScratchFolder scratch_;
};

TEST_F(PlanTables, NeedNoWeightsWhereTheRecipeDescribesTheTowers) {
  const Ran ran = run("plan " + quickstart());
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, ContainsRegex("align +connector +9 +16,704 +trained +0.002 +0.01\n"));
  const Ran budget = run("plan --budget " + quickstart());
  EXPECT_EQ(budget.code, 0) << budget.err;
  EXPECT_THAT(budget.out, ContainsRegex("align +connector +9 +16,704 +trained +0.002 +0.01\n"));
  EXPECT_THAT(budget.out, ContainsRegex("memory, CPU +align +instruct +prefer\n"));
  EXPECT_THAT(budget.out, ContainsRegex("reference, teachers +0 +0 +[0-9.]+ [KM]iB\n"));
}

TEST_F(PlanTables, RefuseASkippedModuleThatIsMisspelt) {
  const auto skipping = [](const char* module) {
    return fmt::format("--set 'quantization={{\"scheme\":\"int8\",\"skip\":[\"{}\"]}}' "
                       "--set stages.align.quantization_aware=true ",
                       module);
  };
  for (const char* plan : {"plan ", "plan --budget "}) {
    const Ran ran = run(plan + skipping("vison.*") + quickstart());
    EXPECT_EQ(ran.code, 3);
    EXPECT_THAT(ran.err, HasSubstr("quantization.skip vison.*: no module of the model matches"));
    EXPECT_THAT(ran.err, HasSubstr("the names of modules begin with that of a part: "));
    for (const char* module : {"vision.*", "decoder.lm_head"})
      EXPECT_EQ(run(plan + skipping(module) + quickstart()).code, 0);
  }
}

TEST_F(PlanTables, AreMissingWithAReasonWhereWeightsAreMissing) {
  const Ran ran = run("plan fvlm-135m.lua --arg weights=/nowhere");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              HasSubstr("parameters and memory are unknown: /nowhere/dinov2-small: there is no such folder\n"));
  EXPECT_EQ(run("plan --budget fvlm-135m.lua --arg weights=/nowhere").code, 4);
}

TEST_F(PlanTables, AreAskedForByOptionsThatNeedThem) {
  const Ran ran = run("plan --ranks 2 " + quickstart());
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--ranks: it changes nothing without --budget"));
  EXPECT_THAT(ran.err, HasSubstr("`fvlm-engine plan quickstart.lua --budget --ranks 2`"));
}

TEST_F(PlanTables, AloneAreOneDocument) {
  const Ran ran = run("plan --budget --json " + quickstart());
  EXPECT_EQ(ran.code, 0) << ran.err;
  const json stages = json::parse(ran.out);
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[2]["stage"], "prefer");
  EXPECT_EQ(stages[0]["groups"][0]["parameters"], 16704);
  int64_t sum = 0;
  for (const auto& [item, bytes] : stages[0]["memory"].items())
    if (item != "sum") sum += bytes.get<int64_t>();
  EXPECT_EQ(stages[0]["memory"]["sum"], sum);
}

TEST_F(PlanTables, ShowWhatMuonLeavesToAdamWAtItsOwnRates) {
  const std::string muon = "--set 'stages.align.optimizer={\"kind\":\"muon\",\"lr\":0.02,\"groups\":[\"decoder\"],"
                           "\"others\":{\"lr\":{\"connector\":0.003,\"default\":0.0005}}}' ";
  const Ran ran = run("plan --budget --json " + muon + quickstart());
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const json& group : json::parse(ran.out)[0]["groups"]) {
    const bool decodes = group["name"] == "decoder";
    EXPECT_EQ(group.value("lr", 0.0), decodes ? 0.02 : group["name"] == "connector" ? 0.003 : 0.0005) << group;
    EXPECT_EQ(group.contains("others_lr"), decodes) << group;
    if (decodes) {
      EXPECT_EQ(group["others_lr"], 0.0005) << "its norms and its embedding";
    }
  }
  const Ran text = run("plan " + muon + quickstart());
  EXPECT_THAT(text.out, ContainsRegex("align +connector +9 +16,704 +trained +0.003 +0.01\n"));
  EXPECT_THAT(text.out, ContainsRegex("align +decoder +[0-9]+ +[0-9,]+ +trained +0.02, others 0.0005 +0.01\n"));
}

// Each by itself takes about 30 ms of processor time.
TEST_F(PlanTables, MeasureEqualStagesOnce) {
  write_file_atomic(scratch_.path() / "r.lua", fmt::format(R"(local fvlm = require "fvlm"
local stages = {{}}
for i = 1, 1000 do
  stages[i] = fvlm.stage("s" .. i, {{ data = fvlm.mix {{ "nowhere.tar" }}, objective = fvlm.next_token {{}}, samples = 100 * i,
    batch = i == 1000 and 2 or 10, optimizer = fvlm.adamw {{ lr = 1e-3 }} }})
end
return fvlm.recipe {{ name = "x",
  model = fvlm.model {{ image_size = 56, vision = fvlm.dinov2 {{ width = 64, layers = 2, heads = 2, patch_size = 14 }},
    decoder = fvlm.llama {{ tokenizer = "{}/tokenizer", width = 64, layers = 2, heads = 2 }} }},
  table.unpack(stages) }}
)",
                                                           scratch_.path().string()));
  const Ran ran = test::shell(fmt::format("ulimit -t 15; '{}' plan --budget --json --device cpu '{}/r.lua'",
                                          FVLM_ENGINE, scratch_.path().string()));
  ASSERT_EQ(ran.code, 0) << ran.err;
  const json stages = json::parse(ran.out);
  ASSERT_EQ(stages.size(), 1000u);
  EXPECT_EQ(stages[998]["stage"], "s999");
  EXPECT_EQ(stages[998]["memory"], stages[0]["memory"]);
  EXPECT_LT(stages[999]["memory"]["pack"], stages[0]["memory"]["pack"]) << "the last one has smaller batches";
}

TEST_F(PlanTables, LeaveThePlanFileUnchanged) {
  const json document = json::parse(run("plan --json " + quickstart()).out);
  EXPECT_FALSE(document.contains("budget"));
}

TEST_F(PlanTables, RefuseUnknownDevices) {
  EXPECT_EQ(run("plan quickstart.lua --device tpu").code, 2);
}

class PackByMemory : public PlanTables {
 protected:
  std::string recipe() const {
    return quickstart() + " --set stages.align.packing.tokens=memory --set stages.align.packing.frames=auto "
                          "--set stages.align.packing.segments=auto";
  }
};

TEST_F(PackByMemory, IsChosenWhenTrainingStarts) {
  const Ran ran = run("plan " + recipe());
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("tokens memory"));
  EXPECT_THAT(ran.out, HasSubstr("chosen when training starts, as memory allows"));
}

TEST_F(PackByMemory, IsInTheBudgetOfALimit) {
  const auto pack = [&](int64_t limit) {
    const Ran ran = run(fmt::format("plan --budget --json --memory-mib {} {}", limit, recipe()));
    EXPECT_EQ(ran.code, 0) << ran.err;
    const json stage = json::parse(ran.out)[0];
    EXPECT_EQ(stage["packing"]["memory_bytes"], limit << 20);
    EXPECT_LE(stage["packing"]["estimated_bytes"], limit << 20);
    EXPECT_EQ(stage["pack"]["tokens"], stage["packing"]["tokens"]) << "the table is of this pack";
    return stage["packing"]["tokens"].get<int64_t>();
  };
  EXPECT_LT(pack(16), pack(24));
  const Ran ran = run("plan --budget --memory-mib 16 " + recipe());
  EXPECT_THAT(ran.out,
              ContainsRegex("align: packing.tokens = \"memory\": packs of [0-9,]+ tokens and [0-9,]+ frames, the "
                            "largest that fit; estimated 1[0-9.]+ MiB, the limit is 16.0 MiB as --memory-mib"));
}

TEST_F(PackByMemory, RefusesALimitThatNothingReads) {
  const Ran ran = run("plan --budget --memory-mib 16 " + quickstart());
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("no stage of this recipe has packing.tokens = \"memory\""));
  EXPECT_EQ(run("train --memory-mib 16 " + quickstart()).code, 2);
  EXPECT_EQ(run("plan --memory-mib 16 " + recipe()).code, 2);
  EXPECT_EQ(run("plan --budget --memory-mib 0 " + recipe()).code, 2);
}

class DryRun : public PlanTables {};

TEST_F(DryRun, PrintsALineOrADocument) {
  const std::string data = (scratch_.path() / "shapes").string(), recipe = "quickstart.lua --arg data=" + data;
  ASSERT_EQ(
      std::system(
          fmt::format("'{}' --out '{}' --samples captions=8,text=4 >/dev/null 2>&1", FVLM_MAKE_SHAPES, data).c_str()),
      0);
  const std::string command = "train --dry-run --bundled-only --device cpu --stage align " + recipe;
  const Ran line = run(command), document = run(command + " --json");
  EXPECT_EQ(line.code, 0) << line.err;
  EXPECT_THAT(line.out, HasSubstr("nothing was trained"));
  EXPECT_EQ(document.code, 0) << document.err;
  // What `check` prints, and where the run would start.
  auto dry = nlohmann::json::parse(document.out);
  EXPECT_THAT(dry["start"].get<std::string>(), HasSubstr("stage align, step 0"));
  dry.erase("start");
  EXPECT_EQ(dry, nlohmann::json::parse(run("check --json " + recipe).out));
}

TEST_F(DryRun, PassesStagesThatMuonTrains) {
  const std::string data = (scratch_.path() / "stills").string();
  ASSERT_EQ(std::system(fmt::format("'{}' --out '{}' --samples documents=200,heldout/documents=8,text=40,stills/"
                                    "captions=40,stills/questions=40,heldout/stills=8 >/dev/null 2>&1",
                                    FVLM_MAKE_SHAPES, data)
                            .c_str()),
            0);
  const Ran ran = run("train --dry-run --bundled-only --device cpu tiny/ghostvis.lua --arg data=" + data);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("nothing was trained"));
}

class CheckFiles : public PlanTables {
 protected:
  CheckFiles() {
    std::filesystem::create_directories(at("vision"));
    write_file_atomic(at("shard.tar"), std::string(10'240, '\0'));
  }
  std::filesystem::path at(const std::string& name) const { return scratch_.path() / name; }
  std::string check(const std::string& vision, const std::string& size = "224", const std::string& layers = "0") const {
    write_file_atomic(at("r.lua"), fmt::format(R"(local fvlm = require "fvlm"
return fvlm.recipe {{ name = "x",
  model = fvlm.model {{ image_size = {1}, vision = {0},
    decoder = fvlm.llama {{ tokenizer = "{3}/tokenizer", width = 64, layers = 2, heads = 2 }} }},
  fvlm.stage "a" {{ data = fvlm.mix {{ "{3}/shard.tar" }}, objective = fvlm.next_token {{}}, samples = 100, batch = 10,
    optimizer = fvlm.adamw {{ lr = 1e-3 }}, activation_checkpointing = {{ vision = {{ layers = {{ {2} }} }} }} }} }}
)",
                                               vision, size, layers, scratch_.path().string()));
    const Ran ran = run("check --files " + at("r.lua").string());
    EXPECT_EQ(ran.code, ran.err.empty() ? 0 : 4) << ran.err;
    return ran.err;
  }
  std::string folder() const { return fmt::format("\"{}\"", at("vision").string()); }
};

TEST_F(CheckFiles, OpensWhatADryRunOpens) {
  const std::string fresh = "fvlm.dinov2 { width = 64, layers = 2, heads = 2, patch_size = 14 }";
  EXPECT_EQ(check(fresh), "");
  write_file_atomic(at("shard.tar"), std::string(2000, 'x'));
  EXPECT_THAT(check(fresh), HasSubstr("shard.tar: not a tar file"));
  write_file_atomic(at("shard.tar"), std::string(10'240, '\0'));
  write_file_atomic(at("tokenizer/tokenizer.json"), "{\"model\": 1}");
  EXPECT_THAT(check(fresh), HasSubstr("unusable: " + at("tokenizer").string()));
}

TEST_F(CheckFiles, SaysWhoReadsShardsWhole) {
  const std::string fresh = "fvlm.dinov2 { width = 64, layers = 2, heads = 2, patch_size = 14 }";
  EXPECT_EQ(check(fresh), "");
  // A header behind the first one is damaged: the recipe's file is there from check().
  write_file_atomic(at("a.txt"), "a");
  ASSERT_EQ(test::shell(fmt::format("cd '{0}' && tar cf shard.tar a.txt && head -c 1024 shard.tar >cut.tar && "
                                    "head -c 1024 /dev/zero | tr '\\0' x >>cut.tar && mv cut.tar shard.tar",
                                    scratch_.path().string()))
                .code,
            0);
  const std::string recipe = at("r.lua").string();
  const Ran files = run("check --files " + recipe);
  EXPECT_EQ(files.code, 0) << files.err;
  EXPECT_THAT(files.out, HasSubstr("`fvlm-engine data check` decodes every sample"));
  EXPECT_EQ(run("data check " + recipe).code, 4);
}

TEST_F(CheckFiles, ReadsTheBeginningOfShardsOfEveryForm) {
  const auto of = [&](const std::string& name, const std::string& content) {
    write_file_atomic(at(name), content);
    write_file_atomic(at("f.lua"), fmt::format(R"(local fvlm = require "fvlm"
return fvlm.recipe {{ name = "x",
  model = fvlm.model {{ image_size = 224, vision = fvlm.dinov2 {{ width = 64, layers = 2, heads = 2, patch_size = 14 }},
    decoder = fvlm.llama {{ tokenizer = "{0}/tokenizer", width = 64, layers = 2, heads = 2 }} }},
  fvlm.stage "a" {{ data = fvlm.mix {{ "{0}/{1}" }}, objective = fvlm.next_token {{}}, samples = 100, batch = 10,
    optimizer = fvlm.adamw {{ lr = 1e-3 }} }} }}
)",
                                               scratch_.path().string(), name));
    const Ran ran = run("check --files " + at("f.lua").string());
    EXPECT_EQ(ran.code, ran.err.empty() ? 0 : 4) << ran.err;
    return ran.err;
  };
  EXPECT_EQ(of("good.jsonl", "\xef\xbb\xbf\n {\"caption\": \"a\"}\n"), "");
  EXPECT_EQ(of("good.json", "\n[]"), "");
  EXPECT_EQ(of("one.json", "{\"caption\": \"a\"}"), "");
  EXPECT_EQ(of("packed.jsonl.gz", "\x1f\x8b\x08 and what is compressed"), "") << "is not decompressed";
  EXPECT_THAT(of("bad.jsonl", "a,b\n1,2\n"), HasSubstr("bad.jsonl: its first line is no JSON object"));
  EXPECT_THAT(of("list.jsonl", "[{}]\n"), HasSubstr("list.jsonl: its first line is no JSON object"));
  EXPECT_THAT(of("page.json", "<html>"), HasSubstr("page.json: it begins with neither a JSON list nor an object"));
  EXPECT_THAT(of("empty.jsonl", ""), HasSubstr("empty.jsonl: the file is empty"));
  EXPECT_THAT(of("cut.parquet", "PAR1" + std::string(400, 'x')), HasSubstr("cut.parquet: it is no whole Parquet file"));
}

TEST_F(CheckFiles, ReadsConfigsAndTheHeadersOfWeights) {
  EXPECT_THAT(check("\"facebook/dinov2-small\""), HasSubstr("hf download facebook/dinov2-small"));
  write_file_atomic(at("vision/model.safetensors"), "cut");
  write_file_atomic(at("vision/config.json"), R"({"model_type": "vit_mae"})");
  EXPECT_THAT(check(folder()), HasSubstr("unusable: "));
  const std::string header = R"({"embeddings.cls_token":{"dtype":"F32","shape":[1,1,64],"data_offsets":[0,256]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  write_file_atomic(at("vision/model.safetensors"), file + header + std::string(256, '\0'));
  EXPECT_THAT(check(folder()), HasSubstr("model_type \"vit_mae\" is not supported as"));
  write_file_atomic(at("vision/config.json"), R"({"model_type": "dinov2", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "mlp_ratio": 4, "image_size": 224, "patch_size": 14})");
  EXPECT_THAT(check(folder()), HasSubstr("model.vision, " + at("r.lua").string() + ":3")) << "tensors are missing";
  check(folder(), "100");
  const Ran size = run("plan --budget " + at("r.lua").string());
  EXPECT_EQ(size.code, 3);
  EXPECT_THAT(size.err,
              HasSubstr("model.image_size: 100 pixels are no whole number of patches of 14\n  image_size = 98"));
  check(folder(), "224", "99");
  const Ran layers = run("plan --budget " + at("r.lua").string());
  EXPECT_EQ(layers.code, 3);
  EXPECT_THAT(layers.err,
              HasSubstr("stages.a.activation_checkpointing.vision: there is no layer 99: the tower has 2\n  "
                        "layers are counted from 0, the last is 1"));
  write_file_atomic(at("vision/model.safetensors"), file + header + std::string(100, '\0'));
  EXPECT_THAT(check(folder()), HasSubstr("unusable: " + at("vision/model.safetensors").string()));
}

class FindBatchVerb : public PlanTables {};

TEST_F(FindBatchVerb, PrintsTriesAndTheResultingRecipeLine) {
  const Ran ran = run("train --find-batch --bundled-only --memory-mib 16 --stage prefer " + quickstart());
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("stage prefer\n"));
  EXPECT_THAT(ran.out, ContainsRegex(" fits\n"));
  EXPECT_THAT(ran.out, ContainsRegex("the largest that fits, for the recipe:\n  batch = [0-9]+, packing = \\{ frames = "
                                     "[0-9]+, tokens = [0-9]+, segments = [0-9]+ \\},\n"));
  EXPECT_THAT(ran.out, testing::Not(HasSubstr("stage align"))) << "one stage was asked for";
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(FVLM_RECIPES) / "runs")) << "writes nothing";
}

TEST_F(FindBatchVerb, PrintsJson) {
  const Ran ran = run("train --find-batch --bundled-only --memory-mib 12 --json --stage align " + quickstart());
  EXPECT_EQ(ran.code, 0) << ran.err;
  const json stages = json::parse(ran.out);
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_EQ(stages[0]["stage"], "align");
  EXPECT_GT(stages[0]["suggestion"]["packing"]["tokens"], 0);
  for (const auto& one : stages[0]["tries"])
    if (one["end"] == "fits") {
      EXPECT_LE(one["peak_bytes"], 12 << 20);
    }
}

TEST_F(FindBatchVerb, ExitsWith1WhenNothingFitsAnd6WhenTheModelDoesNot) {
  EXPECT_EQ(run("train --find-batch --bundled-only --memory-mib 5 --stage align " + quickstart()).code, 1);
  EXPECT_EQ(run("train --find-batch --bundled-only --memory-mib 1 --stage align " + quickstart()).code, 6);
  EXPECT_EQ(run("train --find-batch --bundled-only --memory-mib=-1 --stage align " + quickstart()).code, 2);
  EXPECT_EQ(run("train --find-batch --dry-run " + quickstart()).code, 2);
  EXPECT_EQ(run("train --max-steps -1 " + quickstart()).code, 2);
}

} // namespace
} // namespace fvlm
