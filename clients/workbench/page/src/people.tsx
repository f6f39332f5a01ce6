// Who may come: a lead invites people by a link each, and revokes what they have.
import { useEffect, useState } from "preact/hooks";
import { call, ROLES, type Person } from "./api";

interface Member { name: string; role: Person["role"]; invited_at: number; revoked_at: number }

export function People({ me }: { me: Person }) {
  const [members, setMembers] = useState<Member[]>([]);
  const [name, setName] = useState("");
  const [role, setRole] = useState<Person["role"]>("annotator");
  const [made, setMade] = useState<{ name: string; href: string } | null>(null);
  const [told, setTold] = useState("");
  const mine = ROLES.indexOf(me.role);

  const load = (): Promise<void> => call<Member[]>("/api/people").then(setMembers).catch((error: Error) => setTold(error.message));
  useEffect(() => { void load(); }, []);

  async function invite(name: string, role: Person["role"]): Promise<void> {
    setTold("");
    setMade(null);
    try {
      const { link } = await call<{ link: string }>("/api/invite", { name, role });
      setMade({ name: `${name} (${role})`, href: `${location.origin}/sign-in?link=${link}` });
      setName("");
    } catch (error) {
      setTold((error as Error).message);
    }
    await load();
  }

  async function revoke({ name, role }: Member): Promise<void> {
    setMade(null);
    await call("/api/revoke", { name, role }).then(() => setTold(`${name} is signed out everywhere, and no link that ${name} has signs in any more. What was answered stays.`)).catch((error: Error) => setTold(error.message));
    await load();
  }

  return (
    <div class="wide">
      <h1>People</h1>
      <form onSubmit={(event) => { event.preventDefault(); void invite(name.trim(), role); }}>
        <label>Name <input value={name} required maxLength={256} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <label>Role <select value={role} onChange={(event) => setRole(event.currentTarget.value as Person["role"])}>{ROLES.slice(0, mine + 1).map((one) => <option key={one} value={one}>{one}</option>)}</select></label>
        <button type="submit" class="primary">Make a link</button>
      </form>
      {told && <p role="status">{told}</p>}
      {made && <p class="last" role="status">
        <label class="grow">Link for {made.name}: it signs in once, within an hour. Send it to nobody else.
          <input readOnly value={made.href} onFocus={(event) => event.currentTarget.select()} />
        </label>
        {navigator.clipboard && <button type="button" onClick={() => navigator.clipboard.writeText(made.href)}>Copy</button>}
      </p>}
      <div class="tables" tabIndex={0} role="region" aria-label="Members"><table>
        <thead><tr><th scope="col">Name</th><th scope="col">Role</th><th scope="col">Let in</th><th scope="col">Now</th></tr></thead>
        <tbody>{members.map((one) => (
          <tr key={one.name}>
            <td>{one.name}</td><td>{one.role}</td><td>{new Date(one.invited_at * 1000).toLocaleString()}</td>
            <td>
              {one.revoked_at > one.invited_at && <span class="quiet">revoked</span>}{" "}
              {ROLES.indexOf(one.role) <= mine && one.name !== me.name && <>
                <button type="button" onClick={() => invite(one.name, one.role)}>New link</button>{" "}
                {one.revoked_at <= one.invited_at && <button type="button" onClick={() => revoke(one)}>Revoke</button>}
              </>}
            </td>
          </tr>
        ))}</tbody>
      </table></div>
      <p class="quiet">People who sign in by your organisation are listed once they have come; whether they may come again is decided there.</p>
    </div>
  );
}
