#include "base/error.h"
#include "base/log.h"
#include "plugin/selection.h"
#include "workshop.h"

#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Plugins without libraries, whose answers are the elements of this array.
struct Answer {
  int32_t score;
  std::string reason;
  bool overrun = false, throws = false, endless = false;
};
Answer answers[3];

template <int slot>
struct Fake {
  static inline const char* name = "";
  static void supports(const fvlm_attention_query*, fvlm_support* support) {
    const Answer& answer = answers[slot];
    if (answer.throws) throw std::runtime_error("no memory");
    fvlm_answer(support, answer.score, "%s", answer.reason.c_str());
    if (answer.endless) std::memset(support->reason, 'x', sizeof support->reason);
    if (answer.overrun) std::memset(support->reason, 0, sizeof support->reason + 8);
  }
  static const fvlm_plugin* entry(const fvlm_host*) {
    static const fvlm_attention_v1 attention = {
        {sizeof attention, [](auto*, auto**, auto*) { return fvlm_status{FVLM_OK}; }, [](auto*) {}},
        supports,
        [](auto*, auto*, auto*, auto*) { return fvlm_status{FVLM_OK}; },
        nullptr,
        [](auto*, auto*, auto*, auto*) { return fvlm_status{FVLM_OK}; },
        [](auto*, auto*, auto*, auto*) { return fvlm_status{FVLM_OK}; }};
    static const fvlm_plugin plugin = {
        sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, name, "1", [](const char* kind) -> const void* {
          return std::strcmp(kind, FVLM_ATTENTION_KIND) ? nullptr : &attention;
        }};
    return &plugin;
  }
  static void add(Registry& registry, const char* called, std::vector<std::string> devices = {"cpu"}) {
    name = called;
    answers[slot] = {0, ""};
    registry.add_static(builtin_manifest(called, "1", "fake", {FVLM_ATTENTION_KIND}, std::move(devices)),
                        [] { return &entry; });
    registry.load(called); // before the answers become what a test makes them
  }
};

class Selection : public Workshop {
 protected:
  Selection() : registry_(RegistryOptions()) {
    Fake<0>::add(registry_, "attention-fast");
    Fake<1>::add(registry_, "attention-cpu");
    Fake<2>::add(registry_, "reference");
    answers[0] = {0, "head_dim 80 not supported"};
    answers[1] = {100, "tiles of 64"};
    answers[2] = {1, "ATen"};
    query_.struct_size = sizeof query_;
    query_.device = {FVLM_CPU, 0};
  }

  Choice<fvlm_attention_v1> choice(std::vector<std::string> names) {
    return select<fvlm_attention_v1>(registry_, {std::move(names)}, query_);
  }
  std::string chosen(std::vector<std::string> names) { return choice(std::move(names)).plugin->name(); }
  std::string error_of(std::vector<std::string> names) {
    try {
      return "chose " + chosen(std::move(names));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::plugin);
      return error.text();
    }
  }

  Registry registry_;
  fvlm_attention_query query_{};
};

TEST_F(Selection, AutoTakesTheBestScore) {
  EXPECT_EQ(chosen({}), "attention-cpu");
  answers[2].score = 300;
  EXPECT_EQ(chosen({"auto"}), "reference");
}

TEST_F(Selection, AutoBreaksTiesBySearchOrder) {
  answers[0] = {100, ""};
  answers[2].score = 100;
  EXPECT_EQ(chosen({}), "attention-fast");
}

TEST_F(Selection, TakesTheFirstSupportedOfTheList) {
  EXPECT_EQ(chosen({"attention-fast", "reference", "attention-cpu"}), "reference");
  EXPECT_EQ(chosen({"fast", "cpu"}), "attention-cpu") << "the kind's label may be left out";
  EXPECT_EQ(chosen({"fast", "auto"}), "attention-cpu");
}

TEST_F(Selection, ReportsTheChoiceAndEveryRefusal) {
  auto report = choice({"cudnn", "fast", "cpu"}).report;
  EXPECT_EQ(report.text(),
            "attention: attention-cpu (score 100: tiles of 64); refused: cudnn: no plugin of this name was found; "
            "attention-fast: head_dim 80 not supported");
}

TEST_F(Selection, LogsTheChoice) {
  set_log_level(LogLevel::debug);
  testing::internal::CaptureStderr();
  choice({});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("attention: attention-cpu (score 100: tiles of 64)"));
  set_log_level(LogLevel::info);
}

TEST_F(Selection, FailureListsEveryRefusal) {
  EXPECT_THAT(error_of({"fast", "attention-gpu"}),
              AllOf(HasSubstr("attention: none of the preferred plugins (fast, attention-gpu) supports it"),
                    HasSubstr("\n  attention-fast: head_dim 80 not supported"),
                    HasSubstr("\n  attention-gpu: no plugin of this name was found; did you mean 'attention-cpu'?"),
                    HasSubstr("append \"reference\" to the list")));
  for (auto& answer : answers) answer.score = 0;
  EXPECT_THAT(error_of({}), AllOf(HasSubstr("(auto)"), HasSubstr("reference: ATen")));
}

TEST_F(Selection, FallsThroughToTheReferenceWhereListed) {
  EXPECT_EQ(chosen({"nothing", "reference"}), "reference");
}

TEST_F(Selection, RejectsImpossibleAnswers) {
  answers[1].score = -1;
  EXPECT_THAT(choice({}).report.text(), HasSubstr("attention-cpu: supports() returned the score -1"));
  answers[1] = {INT32_MAX, "best of all"};
  EXPECT_EQ(chosen({}), "reference");
  answers[1] = {100, ""};
  answers[1].throws = true;
  EXPECT_THAT(choice({}).report.text(), HasSubstr("attention-cpu: supports() threw std::runtime_error: no memory"));
  answers[1].throws = false;
  answers[1].endless = true;
  EXPECT_THAT(choice({}).report.text(), HasSubstr("attention-cpu: supports() returned an unterminated reason"));
  answers[1].endless = false;
  answers[1].overrun = true;
  EXPECT_THAT(choice({}).report.text(), HasSubstr("attention-cpu: supports() wrote past the end of fvlm_support"));
}

TEST_F(Selection, QueriesOnlyPluginsForTheDevice) {
  query_.device = {FVLM_CUDA, 0};
  EXPECT_THAT(error_of({}), HasSubstr("attention-cpu: runs on cpu only"));
}

TEST_F(Selection, MeasuresWherePreferred) {
  answers[0] = {300, "says it is fast"};
  auto measure = [](const Candidate<fvlm_attention_v1>& candidate) {
    if (candidate.plugin->name() == "reference") throw Error(ErrorKind::plugin, "out of memory");
    return candidate.plugin->name() == "attention-cpu" ? Measurement{0.001, true} : Measurement{0.002};
  };
  query_.tokens_q = query_.tokens_kv = 12;
  const BackendPreference preference = BackendPreference::of({"cudnn", "measure"});
  set_log_level(LogLevel::debug);
  testing::internal::CaptureStderr();
  auto chosen = select<fvlm_attention_v1>(registry_, preference, query_, {}, measure);
  EXPECT_EQ(chosen.plugin->name(), "attention-cpu");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("attention (12 x 12 rows, "), HasSubstr(") measured"), HasSubstr("1.000  earlier"),
                    HasSubstr("2.000  now")));
  set_log_level(LogLevel::info);
  EXPECT_THAT(chosen.report.text(), HasSubstr("reference: failed when it was measured: out of memory"));
  EXPECT_EQ(select<fvlm_attention_v1>(registry_, {{}, false}, query_, {}, measure).plugin->name(), "attention-fast");
}

TEST_F(Selection, AnswersOfAllPreferredWithoutAChoice) {
  const auto names = [&](const std::vector<std::string>& preferences) {
    std::vector<std::string> all;
    for (const CandidateAnswer& one :
         fvlm::answers(registry_, BackendPreference::of(preferences), selection_query<fvlm_attention_v1>(query_)))
      all.push_back(one.plugin);
    return all;
  };
  const auto all = names({});
  EXPECT_GT(all.size(), 2u);
  EXPECT_EQ(names({"auto"}), all);
  EXPECT_EQ(names({"reference", "cpu"}), (std::vector<std::string>{"reference", "attention-cpu"}));
  EXPECT_EQ(names({"nobody"}), std::vector<std::string>());
}

class LibrarySelection : public Workshop {
 protected:
  ManifestText giving(const std::string& kind) {
    ManifestText text;
    text.kinds = fmt::format("[\"{}\"]", kind);
    return text;
  }
};

TEST_F(LibrarySelection, FindsAnOptimizerByItsAlgorithm) {
  lay("sample", "optimizer", giving("fvlm.optimizer/1:sgd"));
  Registry registry(options());
  fvlm_optimizer_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CPU, 0};
  auto choice = select<fvlm_optimizer_v1>(registry, {}, query, "sgd");
  EXPECT_STREQ(choice.table->algorithm, "sgd");
  EXPECT_EQ(choice.report.text(), "optimizer sgd: sample (score 100: plain loops)");
  EXPECT_THROW(select<fvlm_optimizer_v1>(registry, {}, query, "adamw"), Error);
}

// A regression: `generate` printed eight lines of refusals before its answer.
TEST_F(LibrarySelection, ReportsChoiceAndRefusalsInDebugLogOnly) {
  lay("sample", "optimizer", giving("fvlm.optimizer/1:sgd"));
  fvlm_optimizer_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CPU, 0};
  for (const bool verbose : {false, true}) {
    Registry registry(options());
    set_log_level(verbose ? LogLevel::debug : LogLevel::info);
    testing::internal::CaptureStderr();
    const auto choice = select<fvlm_optimizer_v1>(registry, BackendPreference::of({"missing", "auto"}), query, "sgd");
    const std::string output = testing::internal::GetCapturedStderr();
    set_log_level(LogLevel::info);
    EXPECT_EQ(output.find("optimizer sgd: sample (score 100: plain loops); refused: missing: no plugin") !=
                  std::string::npos,
              verbose)
        << output;
    EXPECT_EQ(output.empty(), !verbose) << output;
    ASSERT_EQ(choice.report.considered.size(), 2U);
    EXPECT_TRUE(choice.report.considered[0].by_name);
    EXPECT_FALSE(choice.report.considered[1].by_name);
  }
}

TEST_F(LibrarySelection, RefusesAnOperationMissingFromTheTable) {
  lay("sample", "kernels", giving("fvlm.kernels/1"));
  Registry registry(options());
  EXPECT_EQ(fused_backends_line(registry), "Fused kernel backends available: sample (rmsnorm)");
  fvlm_kernels_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CPU, 0};
  query.op = FVLM_OP_RMSNORM;
  EXPECT_EQ(select<fvlm_kernels_v1>(registry, {}, query).report.subject, "kernels rmsnorm");
  query.op = FVLM_OP_ROPE;
  EXPECT_THROW(select<fvlm_kernels_v1>(registry, {}, query), Error);
}

TEST_F(LibrarySelection, ExplainsARefusedPreference) {
  lay("sample", "entry_crashes");
  Registry registry(options());
  fvlm_attention_query query{};
  query.device = {FVLM_CPU, 0};
  try {
    select<fvlm_attention_v1>(registry, {{"sample"}}, query);
    ADD_FAILURE() << "it was chosen";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("plugin.so: it crashed with SIGSEGV in fvlm_plugin_entry_v1()"));
  }
}

// A loss that supports whatever it is asked for. `size`: of its table; an old one ends before `features`.
template <size_t size>
const fvlm_plugin* loss_entry(const fvlm_host*) {
  static const fvlm_loss_v1 loss = {{size, [](auto*, auto**, auto*) { return fvlm_status{FVLM_OK}; }, [](auto*) {}},
                                    [](auto*, fvlm_support* support) { fvlm_answer(support, 100, "anything"); },
                                    [](auto*, auto*, auto*, auto*) { return fvlm_status{FVLM_OK}; },
                                    nullptr,
                                    [](auto*, auto*, auto*, auto*) { return fvlm_status{FVLM_OK}; },
                                    [](auto*, auto*, auto*, auto*) { return fvlm_status{FVLM_OK}; },
                                    nullptr,
                                    FVLM_LOSS_SOFTCAP};
  static const fvlm_plugin plugin = {
      sizeof plugin,
      FVLM_ABI_MAJOR,
      FVLM_ABI_MINOR,
      size == sizeof loss ? "loss-new" : "loss-old",
      "1",
      [](const char* kind) -> const void* { return std::strcmp(kind, FVLM_LOSS_KIND) ? nullptr : &loss; }};
  return &plugin;
}

TEST(SelectionOfALoss, APluginThatWouldIgnoreTheSoftcapIsNotAsked) {
  constexpr size_t old_size = offsetof(fvlm_loss_v1, features);
  Registry registry{RegistryOptions()};
  registry.add_static(builtin_manifest("loss-old", "1", "fake", {FVLM_LOSS_KIND}, {"cpu"}),
                      [] { return &loss_entry<old_size>; });
  registry.add_static(builtin_manifest("loss-new", "1", "fake", {FVLM_LOSS_KIND}, {"cpu"}),
                      [] { return &loss_entry<sizeof(fvlm_loss_v1)>; });
  fvlm_loss_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CPU, 0};
  const auto chosen = [&] { return select<fvlm_loss_v1>(registry, {{"loss-old", "auto"}}, query); };
  EXPECT_EQ(chosen().plugin->name(), "loss-old");
  query.softcap = 15;
  const auto choice = chosen();
  EXPECT_EQ(choice.plugin->name(), "loss-new");
  EXPECT_THAT(choice.report.text(), HasSubstr("loss-old: does not know softcap"));
}

} // namespace
} // namespace fvlm::test
