// metrics_probe RUN: writes a run's metrics, as a run that was killed and resumed, for tensorboard_test.py to read.
#include "report/metrics_log.h"

#include <cfloat>
#include <cmath>
#include <filesystem>
#include <limits>

using namespace fvlm::report;

namespace {

Record step(const char* stage, int64_t number) {
  double x = static_cast<double>(number);
  return {"step",
          stage,
          number,
          {},
          {{"loss", std::exp(-x / 100)},
           {"lr.connector", 2e-3 / x},
           {"samples", 32 * x},
           {"gradient_norm", 1 + std::sin(x)}}};
}

} // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  std::filesystem::path run = words[1];
  Position checkpoint;
  {
    MetricsLog log(run, {});
    for (int64_t number = 1; number <= 300; ++number) log.write(step("align", number));
    checkpoint = log.flush();
    for (int64_t number = 301; number <= 350; ++number) log.write(step("align", number));
  }
  MetricsLog log(run, checkpoint);
  for (int64_t number = 301; number <= 500; ++number) log.write(step("align", number));
  log.write({"event", "align", 500, {{"what", "stage_end"}, {"text", "all samples seen"}}, {}});
  double infinite = std::numeric_limits<double>::infinity();
  log.write({"step",
             "edges of \"numbers\" \xC3\xA4",
             int64_t{1} << 40,
             {},
             {{"least", 5e-324},
              {"float_least", 1.401298464324817e-45},
              {"float_most", FLT_MAX},
              {"beyond", -DBL_MAX},
              {"infinite", infinite},
              {"nan", std::nan("")},
              {"minus_zero", -0.0},
              {"third", 1.0 / 3}}});
  log.write({"evaluation",
             "instruct",
             1500,
             {{"set", "questions"}, {"mode", "coarse_fine"}, {"measure", "choice"}},
             {{"accuracy", 0.987}, {"samples", 960}}});
  log.flush();
  return 0;
}
