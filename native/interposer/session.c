/* Attaching to the sessions. Whatever goes wrong here denies memory: a limit that cannot be read is a limit of zero. */
#define _GNU_SOURCE
#include "session.h"

#include "loader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Mounted into containers, a file per claim: survives a shell that loses its environment. */
#define SESSION_FOLDER "/etc/gpuslice/sessions"
/* Where the agent mounts this library into containers. */
#define LIBRARY_FOLDER "/usr/lib/gpuslice-container/"
#define ATTACH_SECONDS 15 /* a busy agent answers late, and to be refused is to be without memory */
#define ANSWER_SECONDS 5  /* for what can be asked again */
#define SHORTEST_PAUSE_NS 50000000l
#define LONGEST_PAUSE_NS 500000000l
#define RETRY_NS 1000000000ull
#define REFRESH_NS 5000000000ull
#define HIGH_DESCRIPTOR 300 /* out of the way of programs that count on low numbers; cells_search.py looks here first */
#define CELLS_SEALS (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

struct session session;

static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

struct parameters {
    char session[GPUSLICE_SESSION_BYTES];
    char socket[sizeof((struct sockaddr_un *)0)->sun_path];
    char token[GPUSLICE_TOKEN_BYTES];
};

/* ---- telling the user ---- */

static _Atomic bool complained[COMPLAINTS];

/* A line is dropped when stderr is full: the program must not stop in an allocation because of us. */
static void write_line(const char *line, int length, size_t room) {
    struct pollfd output = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (length > 0 && poll(&output, 1, 0) == 1) {
        ssize_t ignored = write(STDERR_FILENO, line, (size_t)length < room ? (size_t)length : room - 1);
        (void)ignored;
    }
}

void session_complain(enum session_complaint complaint, const char *why) {
    if (!atomic_exchange(&complained[complaint], true)) {
        char line[512];
        int length = snprintf(line, sizeof line, "gpuslice: no GPU memory for process %d: %s\n", (int)getpid(), why);
        write_line(line, length, sizeof line);
    }
}

void session_debug(const char *format, ...) {
    const char *wanted = secure_getenv("GPUSLICE_DEBUG");
    if (wanted == NULL || wanted[0] == '\0' || strcmp(wanted, "0") == 0) {
        return;
    }
    char text[400], line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int length = snprintf(line, sizeof line, "gpuslice[%d]: %s\n", (int)getpid(), text);
    write_line(line, length, sizeof line);
}

void session_explain(const struct page *page) {
    switch (atomic_load(&page->control->state)) {
    case GPUSLICE_EXPIRED:
        session_complain(COMPLAINT_EXPIRED, "the session's time to live is over; what is allocated stays valid");
        break;
    case GPUSLICE_RELEASED:
        session_complain(COMPLAINT_EXPIRED, "the session was released; what is allocated stays valid");
        break;
    default:
        if (!session_is_current(page)) {
            session_complain(COMPLAINT_CELLS_LOST, "the agent was started again and did not find this process's part of the "
                                                   "session (its descriptors were closed): start the program again");
            break;
        }
        session_complain(COMPLAINT_AGENT_GONE, "the agent (gpusliced) gave no sign of life for longer than the session's "
                                               "grace; allocations go on when it is back");
    }
}

/* ---- where the session is ---- */

static bool copy_text(char *to, size_t size, const char *from) {
    size_t length = from != NULL ? strlen(from) : 0;
    if (length == 0 || length >= size) {
        return false;
    }
    memset(to, 0, size);
    memcpy(to, from, length);
    return true;
}

static void take_line(struct parameters *parameters, char *line) {
    char *value = strchr(line, '=');
    if (value == NULL) {
        return;
    }
    *value++ = '\0';
    value[strcspn(value, "\r\n")] = '\0';
    if (strcmp(line, "GPUSLICE_SESSION") == 0) {
        copy_text(parameters->session, sizeof parameters->session, value);
    } else if (strcmp(line, "GPUSLICE_IPC_SOCK") == 0) {
        copy_text(parameters->socket, sizeof parameters->socket, value);
    } else if (strcmp(line, "GPUSLICE_IPC_TOKEN") == 0) {
        copy_text(parameters->token, sizeof parameters->token, value);
    }
}

/* A file that the agent mounted is on a read-only mount. Any other file was put there from within the container. */
static bool read_file(struct parameters *parameters, int folder, const char *name) {
    int descriptor = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct statvfs mount;
    struct stat status;
    if (descriptor == -1) {
        return false;
    }
    FILE *file = NULL;
    if (fstatvfs(descriptor, &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0 && fstat(descriptor, &status) == 0 &&
        S_ISREG(status.st_mode)) {
        file = fdopen(descriptor, "r");
    }
    if (file == NULL) {
        close(descriptor);
        return false;
    }
    char line[512];
    memset(parameters, 0, sizeof *parameters);
    while (fgets(line, sizeof line, file) != NULL) {
        take_line(parameters, line);
    }
    fclose(file);
    return true;
}

/* The sessions of a container, in the order of their names; UINT32_MAX if there are too many. */
static uint32_t read_folder(struct parameters *parameters) {
    struct dirent **names;
    int found = scandir(SESSION_FOLDER, &names, NULL, alphasort);
    int folder = found > 0 ? open(SESSION_FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    uint32_t count = 0;
    for (int i = 0; i < found; i++) {
        struct parameters one;
        if (folder != -1 && count != UINT32_MAX && read_file(&one, folder, names[i]->d_name)) {
            if (count == SESSION_MOST) {
                count = UINT32_MAX;
            } else {
                parameters[count++] = one;
            }
        }
        free(names[i]);
    }
    if (found >= 0) {
        free(names);
    }
    if (folder != -1) {
        close(folder);
    }
    return count;
}

static bool in_container(void) {
    const char *file = loader_own_file();
    return file != NULL && strncmp(file, LIBRARY_FOLDER, strlen(LIBRARY_FOLDER)) == 0;
}

/* Mounted files win over the environment: the agent wrote them, and any program can set the environment. In a container
 * the environment counts for nothing, because its root can move the files out of sight. NULL, or why not. */
static const char *find_parameters(struct parameters *parameters, uint32_t *count) {
    *count = read_folder(parameters);
    if (*count == 0 && in_container()) {
        return "no session: " SESSION_FOLDER " is not as the agent mounted it";
    }
    if (*count == UINT32_MAX) {
        return "the container has more claims of GPUs than a process can be in (16)";
    }
    if (*count == 0) {
        memset(parameters, 0, sizeof *parameters);
        copy_text(parameters->session, sizeof parameters->session, secure_getenv("GPUSLICE_SESSION"));
        copy_text(parameters->socket, sizeof parameters->socket, secure_getenv("GPUSLICE_IPC_SOCK"));
        copy_text(parameters->token, sizeof parameters->token, secure_getenv("GPUSLICE_IPC_TOKEN"));
        *count = 1;
    }
    for (uint32_t i = 0; i < *count; i++) {
        if (parameters[i].session[0] == '\0') {
            return "no session: GPUSLICE_SESSION is not set (start the program with gpuslice run)";
        }
        if (parameters[i].socket[0] == '\0') {
            return "no agent: GPUSLICE_IPC_SOCK is not set or too long for a socket path";
        }
        if (parameters[i].token[0] == '\0') {
            return "no token: GPUSLICE_IPC_TOKEN is not set or too long";
        }
    }
    return NULL;
}

/* ---- talking to the agent ---- */

static int move_high(int low) {
    int high = low != -1 ? fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) : -1;
    if (high == -1) {
        return low;
    }
    close(low);
    return high;
}

static void set_patience(int connection, uint64_t until_ns) {
    uint64_t now = session_now_ns(), microseconds = (until_ns > now ? until_ns - now : 0) / 1000u + 1; /* 0 means forever */
    struct timeval patience = {.tv_sec = (time_t)(microseconds / 1000000u), .tv_usec = (suseconds_t)(microseconds % 1000000u)};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

/* A connection whose calls wait until then, and no longer. */
static int connect_to(const char *path, uint64_t until_ns) {
    int connection = move_high(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connection == -1) {
        return -1;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int result;
    do { /* a signal, or a full backlog: neither is the agent's word */
        set_patience(connection, until_ns);
        result = connect(connection, (struct sockaddr *)&address, sizeof address);
    } while (result == -1 && (errno == EINTR || errno == EAGAIN) && session_now_ns() < until_ns);
    if (result == -1) {
        int reason = errno;
        close(connection);
        errno = reason;
        return -1;
    }
    set_patience(connection, until_ns);
    return connection;
}

static bool send_request(int connection, const struct parameters *parameters, uint32_t flags) {
    struct gpuslice_attach request = {.magic = GPUSLICE_ATTACH_MAGIC, .version = GPUSLICE_PAGE_VERSION,
                                      .flags = flags};
    memcpy(request.session, parameters->session, sizeof request.session);
    memcpy(request.token, parameters->token, sizeof request.token);
    ssize_t sent;
    do {
        sent = send(connection, &request, sizeof request, MSG_NOSIGNAL);
    } while (sent == -1 && errno == EINTR);
    return sent == (ssize_t)sizeof request; /* smaller than any socket buffer: all or nothing */
}

/* The answer, with two descriptors if all is well; they are -1 otherwise. */
static bool receive_answer(int connection, struct gpuslice_attached *answer, int descriptors[2]) {
    size_t received = 0;
    descriptors[0] = descriptors[1] = -1;
    while (received < sizeof *answer) {
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE(2 * sizeof(int))];
        } control;
        struct iovec part = {(char *)answer + received, sizeof *answer - received};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                                 .msg_controllen = sizeof control.space};
        ssize_t size = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
        if (size == -1 && errno == EINTR) {
            continue;
        }
        if (size <= 0) {
            break;
        }
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
            header->cmsg_len == CMSG_LEN(2 * sizeof(int)) && descriptors[0] == -1) {
            memcpy(descriptors, CMSG_DATA(header), 2 * sizeof(int));
        }
        received += (size_t)size;
    }
    return received == sizeof *answer;
}

/* ---- the pages ---- */

static void *map_file(int descriptor, uint64_t bytes, int protection) {
    struct stat status;
    if (fstat(descriptor, &status) == -1 || (uint64_t)status.st_size != bytes) {
        return NULL; /* a shorter file would end this process with SIGBUS later */
    }
    void *address = mmap(NULL, bytes, protection, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) {
        return NULL;
    }
    madvise(address, bytes, MADV_DONTFORK); /* a child has a slot of its own, or none */
    return address;
}

/* Only memory that no other process can cut off: that would end this one with SIGBUS. */
static struct gpuslice_cell *map_cells(int descriptor, uint32_t gpu_count, bool observer, uint64_t *inode) {
    struct stat status;
    int seals = fcntl(descriptor, F_GET_SEALS);
    if (seals == -1 || (seals & CELLS_SEALS) != CELLS_SEALS || fstat(descriptor, &status) == -1) {
        return NULL;
    }
    *inode = status.st_ino;
    return map_file(descriptor, gpuslice_cells_bytes(gpu_count), observer ? PROT_READ : PROT_READ | PROT_WRITE);
}

static void unmap_page(struct page *page) {
    if (page->control != NULL) {
        munmap((void *)page->control, GPUSLICE_CONTROL_BYTES);
    }
    if (page->cells != NULL) {
        munmap(page->cells, gpuslice_cells_bytes(page->gpu_count));
    }
    memset(page, 0, sizeof *page);
}

static const char *map_pages(const struct gpuslice_attached *answer, const int descriptors[2], bool observer, struct page *page) {
    bool gpus_fit = answer->gpu_count >= 1 && answer->gpu_count <= GPUSLICE_MAX_GPUS;
    bool slot_fits = answer->slot < GPUSLICE_SLOTS || (observer && answer->slot == GPUSLICE_NO_SLOT);
    if (!gpus_fit || !slot_fits || descriptors[0] == -1) {
        return "the agent's answer makes no sense (are agent and library of the same version?)";
    }
    const struct gpuslice_control *control = map_file(descriptors[0], GPUSLICE_CONTROL_BYTES, PROT_READ);
    uint64_t inode = 0;
    struct gpuslice_cell *cells = map_cells(descriptors[1], answer->gpu_count, observer, &inode);
    *page = (struct page){.control = control, .cells = cells, .cells_inode = inode, .slot = answer->slot,
                          .gpu_count = answer->gpu_count};
    if (control == NULL || cells == NULL || control->magic != GPUSLICE_PAGE_MAGIC ||
        control->version != GPUSLICE_PAGE_VERSION || control->gpu_count != answer->gpu_count || !session_is_current(page)) {
        unmap_page(page);
        return "the session's page is broken";
    }
    return NULL;
}

/* ---- the GPUs of all sessions ---- */

static const char *number_gpus(void) {
    session.gpu_count = 0;
    for (uint32_t i = 0; i < session.page_count; i++) {
        const struct page *page = &session.pages[i];
        for (uint32_t index = 0; index < page->gpu_count; index++) {
            if (session.gpu_count == GPUSLICE_MAX_GPUS) {
                return "the container's claims have more GPUs than a process can use (16)";
            }
            session.gpus[session.gpu_count++] = (struct session_gpu){.page = page, .index = index};
        }
    }
    return NULL;
}

uint32_t session_find(const uint8_t uuid[16]) {
    uint32_t found = NO_GPU;
    for (uint32_t gpu = 0; gpu < session.gpu_count; gpu++) {
        const struct session_gpu *share = &session.gpus[gpu];
        if (memcmp(share->page->control->gpus[share->index].uuid, uuid, 16) == 0 &&
            (found == NO_GPU || session_limit(gpu) > session_limit(found))) {
            found = gpu; /* of two claims on the same GPU the larger counts: an allocation is in one or the other */
        }
    }
    return found;
}

/* ---- attaching ---- */

static void let_go(uint32_t index) {
    close(session.connections[index]);
    if (session.cells[index] != -1) {
        close(session.cells[index]);
    }
}

static void forget_after_fork(void) {
    for (uint32_t i = 0; i < session.page_count; i++) {
        let_go(i);
    }
    memset(session.pages, 0, sizeof session.pages); /* not mapped here: MADV_DONTFORK */
    session.page_count = session.gpu_count = 0;
    atomic_store(&session.state, SESSION_NEW);
    atomic_store(&session.retry_ns, 0);
    attach_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* Asks once. NULL, or why not; `busy` if the agent said to ask again. */
static const char *ask_for_slot(const struct parameters *parameters, bool observer, uint64_t until_ns, bool *busy,
                                struct page *page, int *kept, int *kept_cells, char *reason, size_t reason_size) {
    int connection = connect_to(parameters->socket, until_ns);
    if (connection == -1) {
        snprintf(reason, reason_size, "no agent answers at %s: %s (is gpusliced running?)", parameters->socket, strerror(errno));
        return reason;
    }
    struct gpuslice_attached answer;
    int descriptors[2] = {-1, -1};
    const char *why;
    if (!send_request(connection, parameters, observer ? GPUSLICE_ATTACH_OBSERVER : 0) || !receive_answer(connection, &answer, descriptors) ||
        answer.magic != GPUSLICE_ATTACH_MAGIC || answer.version != GPUSLICE_PAGE_VERSION) {
        why = "the agent did not answer the attach request";
    } else if (answer.status != GPUSLICE_ATTACH_OK) {
        answer.message[sizeof answer.message - 1] = '\0';
        snprintf(reason, reason_size, "the agent refused session %.63s: %s", parameters->session, answer.message);
        *busy = answer.status == GPUSLICE_ATTACH_BUSY;
        why = reason;
    } else {
        why = map_pages(&answer, descriptors, observer, page);
    }
    *kept_cells = why == NULL && !observer ? move_high(descriptors[1]) : -1;
    for (int i = 0; i < 2; i++) {
        if (descriptors[i] != -1 && (i == 0 || *kept_cells == -1)) {
            close(descriptors[i]);
        }
    }
    if (why != NULL) {
        close(connection);
        return why;
    }
    *kept = connection;
    session_debug("attached to session %s, slot %u, %u GPU(s)", parameters->session, page->slot, page->gpu_count);
    return NULL;
}

/* Attaches to one session. NULL, or why not. */
static const char *attach_one(const struct parameters *parameters, bool observer, uint64_t until_ns, struct page *page,
                              int *kept, int *kept_cells, char *reason, size_t reason_size) {
    struct timespec pause = {.tv_nsec = SHORTEST_PAUSE_NS};
    for (;;) {
        bool busy = false;
        const char *why = ask_for_slot(parameters, observer, until_ns, &busy, page, kept, kept_cells, reason, reason_size);
        if (!busy || session_now_ns() + (uint64_t)pause.tv_nsec >= until_ns) {
            return why;
        }
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 < LONGEST_PAUSE_NS ? pause.tv_nsec * 2 : LONGEST_PAUSE_NS;
    }
}

/* Under attach_lock: to all sessions, or to none. NULL, or why not. */
static const char *attach(bool observer, char *reason, size_t reason_size) {
    struct parameters parameters[SESSION_MOST];
    uint32_t count;
    const char *why = find_parameters(parameters, &count);
    uint64_t until_ns = session_now_ns() + ATTACH_SECONDS * 1000000000ull;
    for (uint32_t i = 0; why == NULL && i < count; i++) {
        why = attach_one(&parameters[i], observer, until_ns, &session.pages[i], &session.connections[i], &session.cells[i],
                         reason, reason_size);
        session.page_count += why == NULL;
    }
    why = why == NULL ? number_gpus() : why;
    while (why != NULL && session.page_count > 0) {
        session.page_count--;
        unmap_page(&session.pages[session.page_count]);
        let_go(session.page_count);
    }
    return why;
}

/* Puts the pages of `from` where those of `to` are, in one step each: other threads may be reading them. */
static void move_pages(struct page *from, struct page *to) {
    uint64_t bytes = gpuslice_cells_bytes(to->gpu_count);
    if (from->gpu_count != to->gpu_count ||
        mremap(from->cells, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to->cells) == MAP_FAILED) {
        unmap_page(from);
        return;
    }
    from->cells = NULL;
    if (mremap((void *)from->control, GPUSLICE_CONTROL_BYTES, GPUSLICE_CONTROL_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED,
               (void *)to->control) != MAP_FAILED) {
        from->control = NULL;
        atomic_store(&to->cells_inode, atomic_load(&from->cells_inode));
    }
    unmap_page(from);
}

void session_refresh(void) {
    struct parameters parameters[SESSION_MOST];
    uint32_t count;
    char reason[400];
    bool live = true;
    for (uint32_t i = 0; i < session.page_count; i++) {
        live = live && (atomic_load(&session.pages[i].control->state) == GPUSLICE_EXPIRED || session_is_live(&session.pages[i]));
    }
    if (live || session_now_ns() < atomic_load(&session.retry_ns)) {
        return;
    }
    int saved_errno = errno;
    pthread_mutex_lock(&attach_lock);
    bool due = session_now_ns() >= atomic_load(&session.retry_ns);
    atomic_store(&session.retry_ns, session_now_ns() + REFRESH_NS); /* an agent that hangs costs its patience, now and then */
    if (due && find_parameters(parameters, &count) == NULL && count == session.page_count) {
        for (uint32_t i = 0; i < count; i++) {
            struct page page;
            int connection, cells;
            uint64_t until_ns = session_now_ns() + ANSWER_SECONDS * 1000000000ull;
            if (attach_one(&parameters[i], true, until_ns, &page, &connection, &cells, reason, sizeof reason) == NULL) {
                close(session.connections[i]);
                session.connections[i] = connection;
                move_pages(&page, &session.pages[i]);
            }
        }
    }
    pthread_mutex_unlock(&attach_lock);
    errno = saved_errno;
}

bool session_attach(bool observer) {
    static bool handler_installed;
    char reason[400];
    if (atomic_load(&session.state) == SESSION_REFUSED && session_now_ns() < atomic_load(&session.retry_ns)) {
        return false;
    }
    int saved_errno = errno;
    pthread_mutex_lock(&attach_lock);
    if (!handler_installed) {
        handler_installed = pthread_atfork(NULL, NULL, forget_after_fork) == 0;
    }
    if (atomic_load(&session.state) != SESSION_ATTACHED) {
        atomic_store_explicit(&session.clock_offset_ns, session_clock_offset(), memory_order_relaxed);
        const char *why = attach(observer, reason, sizeof reason);
        if (why != NULL) {
            session_complain(COMPLAINT_REFUSED, why);
            atomic_store(&session.retry_ns, session_now_ns() + RETRY_NS); /* the agent may come back */
        }
        atomic_store_explicit(&session.state, why == NULL ? SESSION_ATTACHED : SESSION_REFUSED, memory_order_release);
    }
    bool attached = atomic_load(&session.state) == SESSION_ATTACHED;
    pthread_mutex_unlock(&attach_lock);
    errno = saved_errno;
    return attached;
}

/* ---- the other processes of the session ---- */

static bool receive_all(int connection, void *to, size_t size) {
    size_t received = 0;
    while (received < size) {
        ssize_t part = recv(connection, (char *)to + received, size - received, 0);
        if (part == -1 && errno == EINTR) {
            continue;
        }
        if (part <= 0) {
            return false;
        }
        received += (size_t)part;
    }
    return true;
}

static uint32_t list_processes(const struct parameters *parameters, struct gpuslice_process *found, uint32_t most) {
    struct gpuslice_attached answer;
    uint32_t count = 0;
    int connection = connect_to(parameters->socket, session_now_ns() + ANSWER_SECONDS * 1000000000ull);
    if (connection == -1) {
        return 0;
    }
    if (send_request(connection, parameters, GPUSLICE_ATTACH_PROCESSES) && receive_all(connection, &answer, sizeof answer) &&
        answer.magic == GPUSLICE_ATTACH_MAGIC && answer.version == GPUSLICE_PAGE_VERSION &&
        answer.status == GPUSLICE_ATTACH_OK && answer.slot <= GPUSLICE_SLOTS) {
        uint32_t wanted = answer.slot < most ? answer.slot : most;
        count = receive_all(connection, found, wanted * sizeof *found) ? wanted : 0;
    }
    close(connection);
    return count;
}

uint32_t session_processes(struct gpuslice_process *found, uint32_t most) {
    struct parameters parameters[SESSION_MOST];
    uint32_t sessions, count = 0;
    int saved_errno = errno;
    if (find_parameters(parameters, &sessions) == NULL) {
        for (uint32_t i = 0; i < sessions && count < most; i++) {
            count += list_processes(&parameters[i], found + count, most - count);
        }
    }
    errno = saved_errno;
    return count;
}
