// Stands for other ranks, which add nothing: keeps what each bucket of gradients held when it was reduced.
#pragma once
#include "train/gradient_reduction.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

namespace fvlm::train {

struct RecordedReduction {
  explicit RecordedReduction(model::Parameters& of) : parameters(of) {}

  struct Done : dist::Pending {
    void wait() override {}
  };

  // Every bucket was reduced once, and with its final content.
  void expect_final() const {
    const auto& buckets = parameters.gradient_buckets();
    ASSERT_EQ(reduced.size(), buckets.size());
    for (size_t i = 0; i < buckets.size(); ++i)
      EXPECT_TRUE(at::equal(reduced[i], parameters.gradients().narrow(0, buckets[i].begin, buckets[i].length)))
          << "bucket " << i << ", which begins with " << buckets[i].parameters.front()->name;
  }

  model::Parameters& parameters;
  std::vector<at::Tensor> reduced; // in the order of the buckets
  GradientReduction reduction{parameters, {.reduce = [this](const model::GradientBucket& bucket) {
                                reduced.push_back(
                                    parameters.gradients().narrow(0, bucket.begin, bucket.length).clone());
                                return std::make_unique<Done>();
                              }}};
};

} // namespace fvlm::train
