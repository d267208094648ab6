// timing.h: which of several ways is the fastest.
#pragma once
#include <fvlm/cuda.hpp>

#include <functional>
#include <vector>

namespace fvlm::plugins {

// Enqueues the work for the turn-th time; false: it cannot be done this way.
using Candidate = std::function<bool(int turn)>;

// Seconds that each way takes, infinite where it cannot be done. They run in turn, so that whatever else the device
// does hits all of them, and of each the fastest round counts. Waits for the stream. [setup]
std::vector<double> time_interleaved(cudaStream_t stream, const std::vector<Candidate>& candidates);

// The first of those that are within 2 % of the fastest, so that noise rarely decides.
std::size_t pick_fastest(const std::vector<double>& seconds);

} // namespace fvlm::plugins
