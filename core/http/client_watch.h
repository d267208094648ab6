// ClientWatch: whether a client stays while it is answered. One wait an answer, where a wait beside each piece of it
// would cost more than the piece.
#pragma once
#include "http/pending_response.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <memory>
#include <utility>

namespace fvlm {

// Tells a response, while the watch exists, that the client has closed its connection.
class ClientWatch {
 public:
  ClientWatch(boost::asio::ip::tcp::socket& socket, std::shared_ptr<PendingResponse> response) {
    const auto told = [&socket, response = std::move(response), state = state_](boost::system::error_code error) {
      if (state->is_over || error == boost::asio::error::operation_aborted) return;
      boost::system::error_code unavailable;
      const bool has_bytes = !error && socket.available(unavailable) > 0; // of the next request
      if (!has_bytes || unavailable) response->client_left();
    };
    socket.async_wait(boost::asio::ip::tcp::socket::wait_read,
                      boost::asio::bind_cancellation_slot(state_->end.slot(), told));
  }
  ~ClientWatch() {
    state_->is_over = true;
    state_->end.emit(boost::asio::cancellation_type::terminal);
  }
  ClientWatch(const ClientWatch&) = delete;
  ClientWatch& operator=(const ClientWatch&) = delete;

 private:
  struct State {
    boost::asio::cancellation_signal end;
    bool is_over = false; // then the socket may be gone
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

} // namespace fvlm
