/* The least that a call into a shared library can cost: what every other call is compared with. */
int empty_call(void *argument);

int empty_call(void *argument) {
    return argument == 0;
}
