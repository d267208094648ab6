// PendingResponse: what a handler has answered, on its way to the connection that sends it. Outbox: how it gets there.
#pragma once
#include "http/http_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fvlm {

// Changes that other threads make on the server's thread. Those that come together wake it once.
class Outbox {
 public:
  explicit Outbox(boost::asio::io_context& io) : io_(io) {}

  void add(std::function<void()> change) { // [any thread]
    std::lock_guard lock(lock_);
    changes_.push_back(std::move(change));
    if (changes_.size() == 1) boost::asio::post(io_, [this] { make_changes(); });
  }

 private:
  void make_changes() {
    std::vector<std::function<void()>> changes;
    {
      std::lock_guard lock(lock_);
      std::swap(changes, changes_);
    }
    for (const auto& change : changes) change();
  }

  boost::asio::io_context& io_;
  std::mutex lock_;
  std::vector<std::function<void()>> changes_;
};

// Its calls of HttpResponse take effect on the server's thread, where the rest is called too.
class PendingResponse final : public HttpResponse, public std::enable_shared_from_this<PendingResponse> {
 public:
  // `refusal` outlives it.
  PendingResponse(boost::asio::io_context& io, Outbox& outbox, const WriteRefusal& refusal)
      : outbox_(outbox), refusal_(refusal), changed_(io, boost::asio::steady_timer::time_point::max()) {}

  struct Head {
    int status = 500;
    std::string content_type, body;
    bool in_pieces = false;
    std::vector<std::pair<std::string, std::string>> headers;
  };

  void add_header(std::string name, std::string value) override {
    headers_.emplace_back(std::move(name), std::move(value));
  }

  void send(int status, std::string content_type, std::string body) override {
    finished_ = true;
    hand_over([head = Head{status, std::move(content_type), std::move(body), false, std::move(headers_)}](
                  auto& to) mutable { to.set_head(std::move(head)); });
  }
  void begin(std::string content_type) override {
    hand_over([head = Head{200, std::move(content_type), "", true, std::move(headers_)}](auto& to) mutable {
      to.set_head(std::move(head));
    });
  }
  void write(std::string piece) override {
    hand_over([piece = std::move(piece)](auto& to) mutable { to.pieces_.push_back(std::move(piece)); });
  }
  void end() override {
    finished_ = true;
    hand_over([](auto& to) { to.ended_ = true; });
  }
  void release_body() override {
    if (!released_.exchange(true)) hand_over([](auto& to) { to.body_is_released_ = true; });
  }
  bool is_abandoned() const override { return abandoned_; }

  void refuse(int status, const std::string& why) {
    HttpRefusal written = refusal_(status, why);
    send(status, std::move(written.content_type), std::move(written.body));
  }
  void abandon() { abandoned_ = true; }
  // Answers in the handler's place, unless it has begun. What it adds later is dropped.
  void give_up() {
    if (head_) return;
    abandon();
    HttpRefusal written =
        refusal_(503, "the answer was not ready in time: the server is busy, or the answer long, which a "
                      "stream shows as it comes");
    head_ = Head{503, std::move(written.content_type), std::move(written.body), false, {{"Retry-After", "10"}}};
    changed_.cancel();
  }
  // Ends the wait for what the handler adds.
  void client_left() {
    client_has_left_ = true;
    changed_.cancel();
  }
  bool finished() const { return finished_; }
  boost::asio::awaitable<void> changed() {
    changed_.expires_at(boost::asio::steady_timer::time_point::max());
    co_await changed_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
  }
  std::optional<Head> head_;
  std::deque<std::string> pieces_;
  bool ended_ = false, client_has_left_ = false, body_is_released_ = false;

  // The handler's end. When the last copy is dropped without an answer, that is the answer.
  class Handle final : public HttpResponse {
   public:
    explicit Handle(std::shared_ptr<PendingResponse> to) : to_(std::move(to)) {}
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() override {
      if (to_->finished()) return;
      if (to_->begun_)
        to_->end();
      else
        to_->refuse(500, "the server dropped this request");
    }
    void add_header(std::string name, std::string value) override {
      to_->add_header(std::move(name), std::move(value));
    }
    void send(int status, std::string type, std::string body) override {
      to_->send(status, std::move(type), std::move(body));
    }
    void begin(std::string type) override {
      to_->begun_ = true;
      to_->begin(std::move(type));
    }
    void write(std::string piece) override { to_->write(std::move(piece)); }
    void end() override { to_->end(); }
    void release_body() override { to_->release_body(); }
    bool is_abandoned() const override { return to_->is_abandoned(); }

   private:
    std::shared_ptr<PendingResponse> to_;
  };

 private:
  void set_head(Head head) {
    if (!head_) head_ = std::move(head);
  }
  template <class Change>
  void hand_over(Change change) {
    outbox_.add([self = shared_from_this(), change = std::move(change)]() mutable {
      change(*self);
      self->changed_.cancel();
    });
  }

  std::vector<std::pair<std::string, std::string>> headers_;
  Outbox& outbox_;
  const WriteRefusal& refusal_;
  boost::asio::steady_timer changed_;
  std::atomic<bool> abandoned_{false}, finished_{false}, begun_{false}, released_{false};
};

} // namespace fvlm
