// timing.h: times several implementations of the same work on the device and picks the fastest.
#pragma once
#include <fvlm/cuda.hpp>

#include <functional>
#include <vector>

namespace fvlm::plugins {

// Enqueues one repetition of the work. Returns false if this candidate cannot do it.
using Candidate = std::function<bool(int repeat)>;

// Seconds per candidate, infinite for those that cannot do the work. Candidates are interleaved, so that disturbances
// affect all of them, and the best round of each counts; one that is far behind after the first is not timed again.
// Synchronizes with the stream. [setup]
std::vector<double> time_interleaved(cudaStream_t stream, const std::vector<Candidate>& candidates);

// The first candidate within 1 % of the fastest, so that noise rarely decides.
std::size_t pick_fastest(const std::vector<double>& seconds);

} // namespace fvlm::plugins
