// What the steps since the last line of metrics.jsonl came to. The sums are part of the run's state: a run that is
// resumed between two lines writes the same ones.
#pragma once
#include "device/nvml.h"
#include "report/metrics_log.h"
#include "train/gradient_computer.h"
#include "train/state.h"

#include <c10/core/Device.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

class Interval {
 public:
  // `rows_per_frame`: of the decoder, in each text that sees the frame.
  Interval(const plan::Stage& stage, size_t decoders, int64_t rows_per_frame, RunState& state, c10::Device device);

  // Of the stage.
  int64_t decoder_tokens() const { return state_.decoder_tokens(rows_per_frame_); }

  // Floating-point operations a second that the device can do at most, where that is known.
  void set_peak(std::optional<double> peak) { peak_ = peak; }

  struct Step {
    double loss, gradient_norm, flops;
    const StepCounts& counts; // of the samples that were used
    const std::vector<GradientComputer::TermSums>& terms;
    int64_t used_rows, all_rows;
    std::optional<double> attention_entropy;
  };
  void add(const Step& step);
  void set_rates(std::map<std::string, double> rates) { state_.rates = std::move(rates); } // "lr.GROUP"
  void add_times(PartTimes& times);

  // Nothing that depends on the clock. Where no step was applied since the last line, the loss and the norm of the
  // gradient are not a number.
  std::map<std::string, double> values() const;
  // The next line, after which another begins. None where no step was taken.
  std::optional<report::Record> take(PartTimes& times);

 private:
  void add_device(report::Record& record);
  // A term's figures, of one of the decoders.
  std::vector<std::string> figures(size_t term) const;

  const plan::Stage& stage_;
  size_t decoders_;
  int64_t rows_per_frame_; // in all texts of a sample
  RunState& state_;
  c10::Device device_;
  std::optional<double> peak_;
  std::unique_ptr<const device::Nvml> nvml_; // of a GPU; null where it does not report
  std::optional<double> utilization_;        // when it was last read
  std::chrono::steady_clock::time_point read_at_;
};

} // namespace fvlm::train
