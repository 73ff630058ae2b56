"""The tasks of bench/agents, run inside its virtual environment.

    agent_tasks.py FRAMEWORK SET FIRST COUNT TRANSCRIPTS|- NAME=PORT ...

Plays the tasks FIRST .. FIRST + COUNT - 1 of a set (tasks, trials), each of them against every server in turn (they change places from task to
task), and prints a JSON line for each: {"server", "task", "outcome", "seconds", "calls"}. outcome is "finished", or what
was missing: "no report" (the third tool was never called), "wrong report", "no city", "no temperature" (a report without
the tool that it needs), or the name of the exception that ended the framework. The third tool ends the run where the
framework has means for that (smolagents has a tool of its own, final_answer): a model of this size does not know when
to stop.

TASKS were written down before any of them was run, and are not changed after a look at what a model makes of them. TRIALS
are others of the same kind, to be looked at while something is changed.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

try:
    import httpx2 as httpx  # what openai's clients are made of, where they need it
except ImportError:
    import httpx

# who, where, how warm, the wording
TASKS = [
    ("Amelia", "Lisbon", 21, 0),
    ("Bruno", "Warsaw", 4, 1),
    ("Carmen", "Seville", 33, 2),
    ("Dmitri", "Helsinki", 9, 3),
    ("Esther", "Zurich", 14, 0),
    ("Farid", "Cairo", 36, 1),
    ("Greta", "Hamburg", 11, 2),
    ("Hiroshi", "Osaka", 24, 3),
    ("Ingrid", "Bergen", 7, 0),
    ("Julian", "Toronto", 2, 1),
    ("Kavita", "Mumbai", 31, 2),
    ("Lorenzo", "Naples", 26, 3),
    ("Marta", "Valencia", 28, 0),
    ("Niels", "Aarhus", 8, 1),
    ("Odette", "Lyon", 19, 2),
    ("Pedro", "Santiago", 17, 3),
    ("Quentin", "Brussels", 12, 0),
    ("Renata", "Budapest", 22, 1),
    ("Stefan", "Graz", 16, 2),
    ("Tamara", "Belgrade", 27, 3),
]
TRIALS = [
    ("Walter", "Geneva", 13, 0),
    ("Agnes", "Dublin", 15, 1),
    ("Boris", "Sofia", 29, 2),
    ("Chiara", "Palermo", 34, 3),
    ("Daniel", "Montreal", 3, 0),
    ("Elena", "Bucharest", 25, 1),
    ("Felix", "Leipzig", 10, 2),
    ("Gloria", "Bogota", 18, 3),
    ("Henrik", "Oslo", 5, 0),
    ("Irina", "Riga", 6, 1),
    ("Jonas", "Vilnius", 12, 2),
    ("Katrin", "Basel", 20, 3),
    ("Lukas", "Prague", 23, 0),
    ("Miriam", "Haifa", 32, 1),
    ("Nadia", "Tunis", 35, 2),
    ("Oscar", "Malmo", 1, 3),
    ("Paula", "Porto", 22, 0),
    ("Rafael", "Granada", 30, 1),
    ("Sophie", "Lille", 13, 2),
    ("Tomas", "Krakow", 8, 3),
]
SETS = {"tasks": TASKS, "trials": TRIALS}
WORDINGS = [
    "Find out in which city {} lives, get the temperature there, and report both.",
    "I need a report of the temperature in the city where {} lives.",
    "Where does {} live, and how warm is it there? Look both up, then report them.",
    "Look up the city of {}, look up the temperature of that city, then send the report.",
]
SYSTEM = "You are a helpful assistant. Use the tools to do what the user asks, one step at a time."
TURNS, TOKENS = 8, 160
TIMEOUT = 900  # of a request, in seconds


class World:
    """A task and what the tools did in it."""

    def __init__(self, task):
        self.person, self.city, self.degrees, wording = task
        self.wish, self.calls = WORDINGS[wording].format(self.person), []

    def tools(self):
        """The three tools, as plain functions."""

        def find_city(person: str) -> str:
            """The city where a person lives.

            Args:
                person: the person's name
            """
            self.calls.append(["find_city", person])
            return self.city if same(person, self.person) else "unknown person"

        def get_temperature(city: str) -> str:
            """The temperature of a city now.

            Args:
                city: the city's name
            """
            self.calls.append(["get_temperature", city])
            return "%d degrees Celsius" % self.degrees if same(city, self.city) else "unknown city"

        def report(city: str, temperature: str) -> str:
            """Reports the temperature of a city. This is the last step.

            Args:
                city: the city's name
                temperature: its temperature
            """
            self.calls.append(["report", city, temperature])
            return "reported: everything is done"

        return find_city, get_temperature, report

    def outcome(self):
        told = [c for c in self.calls if c[0] == "report"]
        if not told:
            return "no report"
        if not any(c[0] == "find_city" and same(c[1], self.person) for c in self.calls):
            return "no city"
        if not any(c[0] == "get_temperature" and same(c[1], self.city) for c in self.calls):
            return "no temperature"
        right = self.city.lower() in str(told[0][1]).lower() and str(self.degrees) in str(told[0][2])
        return "finished" if right else "wrong report"


def same(said, name):
    return str(said).strip().lower() == name.lower()


class Transcript(httpx.AsyncHTTPTransport):
    """Writes every body to a file."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    async def handle_async_request(self, request):
        response = await super().handle_async_request(request)
        body = await response.aread()
        note(self.file, request, response.status_code, body)
        return response


class TranscriptSync(httpx.HTTPTransport):
    def __init__(self, file):
        super().__init__()
        self.file = file

    def handle_request(self, request):
        response = super().handle_request(request)
        note(self.file, request, response.status_code, response.read())
        return response


def note(file, request, status, body):
    if file:
        with open(file, "a") as f:
            f.write(
                "> %s %s\n%s\n< %d\n%s\n\n"
                % (request.method, request.url.path, request.content.decode(), status, body.decode(errors="replace"))
            )


def openai_agents(base, model, world, file):
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(
        base_url=base,
        api_key="-",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=Transcript(file), timeout=TIMEOUT),
    )
    agent = agents.Agent(
        name="assistant",
        instructions=SYSTEM,
        tools=[agents.function_tool(f) for f in world.tools()],
        model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client),
        tool_use_behavior=agents.StopAtTools(stop_at_tool_names=["report"]),
        model_settings=agents.ModelSettings(temperature=0, max_tokens=TOKENS, parallel_tool_calls=False),
    )
    return str(agents.Runner.run_sync(agent, world.wish, max_turns=TURNS).final_output)


def langgraph(base, model, world, file):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    chat = ChatOpenAI(
        model=model,
        base_url=base,
        api_key="-",
        temperature=0,
        max_tokens=TOKENS,
        max_retries=0,
        http_client=httpx.Client(transport=TranscriptSync(file), timeout=TIMEOUT),
    )
    tools = [tool(parse_docstring=True, return_direct=f.__name__ == "report")(f) for f in world.tools()]
    agent = create_react_agent(chat.bind_tools(tools, parallel_tool_calls=False), tools, prompt=SYSTEM)
    state = agent.invoke({"messages": [("user", world.wish)]}, {"recursion_limit": 2 * TURNS + 1})
    return str(state["messages"][-1].content)


def pydantic_ai(base, model, world, file):
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(
        base_url=base, api_key="-", http_client=httpx.AsyncClient(transport=Transcript(file), timeout=TIMEOUT)
    )
    find_city, get_temperature, report = world.tools()
    agent = Agent(
        OpenAIChatModel(model, provider=provider),
        system_prompt=SYSTEM,
        output_type=[report, str],
        tools=[find_city, get_temperature],
        model_settings={"temperature": 0.0, "max_tokens": TOKENS, "parallel_tool_calls": False},
    )
    return str(agent.run_sync(world.wish, usage_limits=UsageLimits(request_limit=TURNS)).output)


def smolagents(base, model, world, file):
    from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

    chat = OpenAIServerModel(
        model,
        api_base=base,
        api_key="-",
        temperature=0,
        max_tokens=TOKENS,
        parallel_tool_calls=False,
        client_kwargs={"max_retries": 0, "http_client": httpx.Client(transport=TranscriptSync(file), timeout=TIMEOUT)},
    )
    agent = ToolCallingAgent(
        tools=[tool(f) for f in world.tools()], model=chat, max_steps=TURNS, verbosity_level=LogLevel.OFF
    )
    return str(agent.run(world.wish))


FRAMEWORKS = {
    "openai-agents": openai_agents,
    "langgraph": langgraph,
    "pydantic-ai": pydantic_ai,
    "smolagents": smolagents,
}


def play(framework, base, model, world, file):
    """Outcome of one task; the end of its transcript is written here."""
    error, final = None, ""
    if file:
        file.unlink(missing_ok=True)
    asyncio.set_event_loop(asyncio.new_event_loop())
    try:
        final = FRAMEWORKS[framework](base, model, world, file)
    except Exception as e:
        error, final = type(e).__name__, str(e)
    if file:
        with open(file, "a") as f:
            f.write("calls: %s\nfinal: %s %s\n" % (world.calls, error, final))
    return error or world.outcome()


def main():
    framework, tasks, first, count, folder = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    servers = [(name, "http://127.0.0.1:%s/v1" % port) for name, _, port in (s.partition("=") for s in sys.argv[6:])]
    model = {name: httpx.get(base + "/models", timeout=TIMEOUT).json()["data"][0]["id"] for name, base in servers}
    for task in range(first, first + count):
        for name, base in servers if task % 2 == 0 else servers[::-1]:
            world, begun = World(SETS[tasks][task]), time.monotonic()
            file = None
            if folder != "-":
                file = Path(folder) / name / framework / ("%02d.txt" % task)
                file.parent.mkdir(parents=True, exist_ok=True)
            outcome = play(framework, base, model[name], world, file)
            row = {"server": name, "task": task, "outcome": outcome}
            row.update(seconds=round(time.monotonic() - begun, 1), calls=len(world.calls))
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
