/* Echoes by active messages of UCX, so many outstanding: ucx_perftest has no test for that.
 *
 *   cc -O2 -o ucx_echo ucx_echo.c -lucp -lucs
 *   ucx_echo server SOCKET
 *   ucx_echo client SOCKET BYTES WINDOW COUNT        prints "echoes_per_second R"
 *
 * The two meet at a unix socket and give each other the addresses of their workers. The server answers inside the handler, with
 * the bytes where UCX has them; the client compares each answer with its request and sends the next one inside its own: no queue and no
 * copy of ours. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { ECHO = 1, BYTES_MAX = 4096, ADDRESS_MAX = 65536 };

static ucp_worker_h worker;
static ucp_ep_h peer;
static char request[BYTES_MAX];
static size_t bytes;
static uint64_t unsent, unanswered;
static int is_server, is_over;

static void fail(const char *step, ucs_status_t status) {
    fprintf(stderr, "ucx_echo: %s: %s\n", step, ucs_status_string(status));
    exit(1);
}

static void check(const char *step, ucs_status_t status) {
    if (status != UCS_OK) {
        fail(step, status);
    }
}

static void send_message(const void *from, size_t length) {
    static const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_EAGER};
    ucs_status_ptr_t sent = ucp_am_send_nbx(peer, ECHO, NULL, 0, from, length, &param);
    if (UCS_PTR_IS_ERR(sent)) {
        fail("sending", UCS_PTR_STATUS(sent));
    }
    if (sent != NULL) {
        ucp_request_free(sent);
    }
}

static ucs_status_t came(void *arg, const void *header, size_t header_bytes, void *data, size_t length,
                         const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_bytes, (void)param;
    if (!is_server) {
        if (length != bytes || memcmp(data, request, bytes) != 0) {
            fail("an answer is not its request", UCS_ERR_INVALID_PARAM);
        }
        --unanswered;
        if (unsent > 0) {
            --unsent;
            send_message(request, bytes);
        }
    } else if (length == 0) {
        is_over = 1;
    } else {
        send_message(data, length);
    }
    return UCS_OK;
}

static void both(int fd, void *to, const void *from, size_t length) {
    if (send(fd, from, length, 0) != (ssize_t)length || recv(fd, to, length, MSG_WAITALL) != (ssize_t)length) {
        fail("meeting", UCS_ERR_IO_ERROR);
    }
}

static void meet(int fd) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    ucp_context_h context;
    check("ucp_init", ucp_init(&params, NULL, &context));
    ucp_worker_params_t single = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    check("ucp_worker_create", ucp_worker_create(context, &single, &worker));
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = ECHO, .cb = came};
    check("ucp_worker_set_am_recv_handler", ucp_worker_set_am_recv_handler(worker, &handler));
    static char ours[ADDRESS_MAX], theirs[ADDRESS_MAX];
    ucp_address_t *address;
    size_t length;
    check("ucp_worker_get_address", ucp_worker_get_address(worker, &address, &length));
    if (length > sizeof ours) {
        fail("a worker's address", UCS_ERR_EXCEEDS_LIMIT);
    }
    memcpy(ours, address, length);
    both(fd, theirs, ours, sizeof ours);
    ucp_ep_params_t end = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (ucp_address_t *)theirs};
    check("ucp_ep_create", ucp_ep_create(worker, &end, &peer));
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double echo(uint64_t window, uint64_t count) {
    double start = now();
    unanswered = count;
    uint64_t first = window < count ? window : count;
    unsent = count - first;
    while (first-- > 0) {
        send_message(request, bytes);
    }
    while (unanswered > 0) {
        ucp_worker_progress(worker);
    }
    return count / (now() - start);
}

int main(int argc, char **argv) {
    is_server = argc == 3 && strcmp(argv[1], "server") == 0;
    if (!is_server && argc != 6) {
        fprintf(stderr, "usage: ucx_echo server SOCKET | ucx_echo client SOCKET BYTES WINDOW COUNT\n");
        return 2;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    snprintf(place.sun_path, sizeof place.sun_path, "%s", argv[2]);
    if (is_server) {
        unlink(argv[2]);
        if (bind(fd, (struct sockaddr *)&place, sizeof place) != 0 || listen(fd, 1) != 0) {
            fail("listening", UCS_ERR_IO_ERROR);
        }
        printf("ready\n");
        fflush(stdout);
        meet(accept(fd, NULL, NULL));
        while (!is_over) {
            ucp_worker_progress(worker);
        }
        return 0;
    }
    bytes = strtoul(argv[3], NULL, 10);
    uint64_t window = strtoull(argv[4], NULL, 10), count = strtoull(argv[5], NULL, 10);
    if (bytes == 0 || bytes > BYTES_MAX || window == 0 || connect(fd, (struct sockaddr *)&place, sizeof place) != 0) {
        fail("connecting", UCS_ERR_INVALID_PARAM);
    }
    memset(request, 0x5a, bytes);
    meet(fd);
    echo(window, count / 10 + 1);
    printf("echoes_per_second %.0f\n", echo(window, count));
    fflush(stdout);
    send_message(request, 0);
    for (double end = now() + 0.2; now() < end;) {
        ucp_worker_progress(worker);
    }
    return 0;
}
