// Data parallelism over threads: every pack is split over replicas of the model, each with gradients of its own, which
// are summed in a fixed order at the end of the step. The result depends on the number of replicas (parts), but not on
// the number of threads.
#pragma once
#include "base/task_thread.h"
#include "model/weights/model_directory.h"
#include "train/gradient_computer.h"

#include <memory>
#include <vector>

namespace fvlm::train {

// Splits a pack into runs of consecutive samples of nearly equal number; at most one part for each sample.
std::vector<HostPack> split_pack(const HostPack& pack, int64_t parts);

class ThreadReplicas {
 public:
  // The first replica is the policy itself. Replicas are distributed over `threads` threads.
  struct Size {
    int64_t parts = 1, threads = 1;
  };
  ThreadReplicas(const plan::Plan& plan, const plan::Stage& stage, model::Model& policy, ops::Operations& operations,
                 Registry& registry, const model::Capacity& max_capacity, const Frozen& frozen, const Size& size);

  // As in GradientComputer, for all replicas together. Only a single one can reduce gradients meanwhile.
  void begin_step();
  void forward_backward(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                        bool measure_attention, GradientReduction* reduction = nullptr);
  // They split the pack as forward_backward() does, so that the cached values are bit-identical to those of a live
  // reference or teacher.
  void cache_reference(const HostPack& host, const model::Model& reference);
  void cache_teachers(const HostPack& host);
  void finish_caching();
  at::Tensor sums() const;
  double counted() const;
  int64_t encoded_frames() const;
  int64_t used_rows() const;
  int64_t all_rows() const;
  bool has_measured_attention() const { return computers_.front()->has_measured_attention(); }
  const at::Tensor& attention_entropy() const { return computers_.front()->attention_entropy(); }

  // As in Operations. Each replica has operations of its own, which meet the same refusal by themselves.
  bool drop(const UnsupportedCall& refused);

  // Sums the gradients of all replicas into the policy's arena.
  void reduce_gradients();

 private:
  struct Replica { // shares the policy's weights, has gradients of its own
    std::unique_ptr<ops::Operations> operations;
    std::unique_ptr<model::Model> model;
  };
  model::Model& policy_;
  ops::Operations& operations_;
  std::vector<Replica> replicas_;
  std::vector<std::unique_ptr<GradientComputer>> computers_;
  std::vector<std::unique_ptr<TaskThread>> threads_; // in addition to the calling thread
};

// Those of a stage, whose packs are not divided where a term compares their texts with each other.
ThreadReplicas::Size replicas_of(const plan::Stage& stage, const ThreadReplicas::Size& chosen);

// Small models on a CPU get one replica for each core, up to 8, and LibTorch is limited to one thread. Larger models
// get one replica and LibTorch's own parallelism. OMP_NUM_THREADS overrides the number of threads. [setup]
ThreadReplicas::Size choose_replicas(const ModelDescription& description, at::Device device);

} // namespace fvlm::train
