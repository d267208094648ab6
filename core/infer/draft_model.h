// DraftModel: speculative decoding by a second, smaller model. It reads the texts that a GenerationBatch answers and
// goes on with them by itself, a few tokens a step, which the batch then checks in one pass. Its keys and values are in
// pages of its own, which a scheduler of its own hands out; neither can change an answer.
//
// It reads tokens alone, and nothing of visual rows.
#pragma once
#include "infer/decode_graphs.h"
#include "infer/sampling.h"
#include "infer/scheduler.h"
#include "model/model.h"

#include <map>
#include <span>
#include <vector>

namespace fvlm::infer {

// Throws Error(usage) where the model cannot check drafts, or the other one, if there is any, cannot make them, since
// its decoder carries states.
void require_models_for_drafts(const model::Model& model, const model::Model* draft);

class DraftModel {
 public:
  // Proposes tokens below `vocabulary` alone. The model and the operations outlive it.
  DraftModel(const model::Model& model, model::Operations& ops, const SchedulerLimits& limits, int64_t vocabulary);

  struct Request {
    int64_t number;                // of the text
    std::span<const int64_t> rows; // of the text so far, which begins as it did in earlier requests
    int64_t left, most;            // tokens of the answer that are still to come; drafts, less than these
    const Sampler& sampler;        // a draft is drawn as the answer's tokens are, by the same random numbers
    int64_t drawn;                 // tokens of the answer that have been
  };
  // Drafts of each text. None where its pages do not suffice, or where its prompt has not been read yet, of which each
  // call reads a pass.
  std::map<int64_t, std::vector<int64_t>> propose(const std::vector<Request>& requests);
  // Forgets a text, and gives its pages back.
  void remove(int64_t number);
  // New pages. Forgets all texts.
  void resize(int64_t pages);

  SchedulerCounts counts() const { return scheduler_.counts(); }

 private:
  struct Text {
    size_t known = 0; // rows of the requests that were read
    bool is_readable = true;
  };
  // A request whose drafts are not complete.
  struct Open {
    const Request* request;
    int64_t rows; // of the scheduler, without drafts
  };
  // Takes over what a text consists of by now. False: it has tokens that this model does not have.
  bool follow(const Request& request);
  DecodeGraphs::Output compute(const Scheduler::Pass& pass, bool wants_logits);
  int64_t next_token(const Request& request, const std::vector<int64_t>& drafts, const DecodeGraphs::Output& output,
                     int64_t row) const;

  const model::Model& model_;
  model::Operations& ops_;
  int64_t page_rows_, vocabulary_;
  int64_t parameters_; // of the model
  Scheduler scheduler_;
  model::KvPages pages_;
  DecodeGraphs graphs_;
  std::map<int64_t, Text> texts_; // by number
};

} // namespace fvlm::infer
