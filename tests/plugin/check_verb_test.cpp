// `plugin check` of libraries that the loader refuses, that have no name, that hang.
#include "engine_workshop.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class CheckVerb : public EngineWorkshop {
 protected:
  // The checks that ran; their exit code is verified.
  json rows_of(const fs::path& target, const std::string& options, int code) {
    const Ran run = engine(fmt::format("plugin check '{}' --json {}", target.string(), options));
    EXPECT_EQ(run.code, code) << run.out << run.err;
    return json::parse(run.out).at("checks");
  }
};

TEST_F(CheckVerb, BeginsWithTheLoadersVerdict) {
  const fs::path good = lay("good", "sample");
  const json accepted = rows_of(good, "--only library.loads", 0);
  EXPECT_EQ(accepted.at(0).at("name"), "library.loads");
  EXPECT_EQ(accepted.at(0).at("result"), "ok");
  EXPECT_EQ(rows_of(good / "plugin.so", "--only library.loads", 0).at(0).at("result"), "ok");
}

struct Refused {
  std::string library, reason;
};
void PrintTo(const Refused& refused, std::ostream* out) {
  *out << refused.library;
}
class RefusedByLoader : public CheckVerb, public testing::WithParamInterface<Refused> {};

// Each with its manifest, and as a bare library without one.
TEST_P(RefusedByLoader, FailsTheFirstRow) {
  const fs::path home = lay("broken", GetParam().library);
  fs::copy_file(home / "plugin.so", root() / "bare.so");
  for (const fs::path& target : {home, root() / "bare.so"}) {
    const json row = rows_of(target, "--only library.loads", 5).at(0);
    EXPECT_EQ(row.at("name"), "library.loads");
    EXPECT_EQ(row.at("result"), "failed") << target;
    EXPECT_THAT(row.at("text"), HasSubstr(GetParam().reason)) << target;
  }
}
const Refused refused_by_loader[] = {
    {"table_size_padded", "the table of fvlm.attention/1 has struct_size 107, more than the 104 of ABI 1.0"},
    {"table_size_longer", "the table of fvlm.attention/1 has struct_size 168, more than the 104 of ABI 1.0"},
    {"table_size_of_ones", "the table of fvlm.attention/1 has struct_size 4294967295, more than"},
    {"score_too_high", "supports() returned the score 1001; expected 0 to 1000"},
    {"null_name", "its name is NULL"},
    {"entry_crashes", "it crashed with SIGSEGV in fvlm_plugin_entry_v1()"},
};
INSTANTIATE_TEST_SUITE_P(built, RefusedByLoader, testing::ValuesIn(refused_by_loader),
                         testing::PrintToStringParamName());

class Nameless : public CheckVerb, public testing::WithParamInterface<const char*> {};

TEST_P(Nameless, FailsRowsAndCrashesNone) {
  ManifestText text;
  if (std::string_view(GetParam()).starts_with("optimizer")) text.kinds = R"(["fvlm.optimizer/1:sgd"])";
  for (const json& row : rows_of(lay("broken", GetParam(), text), "--only library.,hyperparameters,states", 5))
    EXPECT_THAT(row.at("text"), testing::Not(HasSubstr("crashed"))) << row.at("name");
}
INSTANTIATE_TEST_SUITE_P(built, Nameless,
                         testing::Values("null_name", "null_version", "optimizer_nameless", "optimizer_null_algorithm",
                                         "optimizer_nameless_state", "optimizer_null_hyperparameters"));

TEST_F(CheckVerb, StopsAfterTwoChecksThatHang) {
  const json rows = rows_of(lay("broken", "supports_hangs"), "--only attention. --time-limit 3", 5);
  int hung = 0;
  for (const json& row : rows) hung += row.at("text").get<std::string>().find("did not end within 3 s") == 11 ? 1 : 0;
  EXPECT_EQ(hung, 2) << rows.dump(1);
  EXPECT_EQ(rows.back().at("name"), "library.returns");
  EXPECT_THAT(rows.back().at("text"), HasSubstr("2 checks did not end within their 3 s"));
}

} // namespace
} // namespace fvlm::test
