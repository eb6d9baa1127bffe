// Questions about a target's symbols.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Lookups : public Part {
 public:
  using Part::Part;

  // Requests: controller.hpp says what they do.
  void functions(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::Function> shape,
                 Reply<std::string> reply);
  void variables(Client& client, pid_t pid, std::string location, Shape<dwarf::VisibleVariable> shape,
                 Reply<std::string> reply);
  void lines(Client& client, pid_t pid, std::string file, std::size_t limit, Shape<symbols::SourceLine> shape,
             Reply<std::string> reply);
  void usdt(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::UsdtProbe> shape,
            Reply<std::string> reply);

 private:
  template <typename T, typename List>
  void look_up(const Client& client, pid_t pid, Shape<T> shape, Reply<std::string> reply, List list);
};

}  // namespace probed::control
